// Rows of C, which lie one after another in the whole result.
#include "panel_results.hpp"

#include <cstring>
#include <utility>

namespace cleave::server {

namespace {

comm::Header whole_of(const comm::Header& panel) {
  comm::Header header = comm::result_header(panel);
  header.panel = {};
  return header;
}

}  // namespace

PanelResults::PanelResults(const comm::Header& panel) : whole_(comm::begin_result(whole_of(panel))) {}

PanelResults::Taken PanelResults::take(const comm::Frame& frame, const comm::Header& header) {
  const comm::Header& asked = whole_.header;
  const bool of_task = header.work == asked.work && header.gemm == asked.gemm && header.wire == asked.wire &&
                       header.output == asked.output && header.device == asked.device && !header.panel.whole();
  if (!of_task || header.panel.first > next_row_) return Taken::missing;
  if (header.panel.first < next_row_) return Taken::again;
  const comm::ResultView rows = comm::view_result(frame, header);
  const std::size_t row_bytes = whole_.outputs[0].size() / static_cast<std::size_t>(asked.gemm.m);
  std::memcpy(whole_.outputs[0].data() + static_cast<std::size_t>(next_row_) * row_bytes, rows.outputs[0].data(),
              rows.outputs[0].size());
  comm::set_timing(whole_, asked.compute + header.compute, header.computed);
  next_row_ = header.panel.end();
  return next_row_ == asked.gemm.m ? Taken::whole : Taken::more;
}

comm::Frame PanelResults::frame() { return std::move(whole_.frame); }

}  // namespace cleave::server
