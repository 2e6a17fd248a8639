// Rows of C, or pairs of each output of attention, which lie one after another in the whole result.
#include "panel_results.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cleave::server {

namespace {

/// Panels of K blocks that a device may have without having multiplied them.
constexpr std::int64_t kInFlight = 2;

comm::Header whole_of(const comm::Header& panel) {
  comm::Header header = comm::result_header(panel);
  header.panel = {};
  return header;
}

}  // namespace

PanelResults::PanelResults(const comm::Header& panel)
    : of_(panel.panel.of),
      units_(panel.panel_units()),
      parts_(panel.work == comm::Work::gemm ? panel.gemm.m : panel.attention.pairs),
      whole_(comm::begin_result(whole_of(panel))) {}

void PanelResults::sent(const comm::Panel& panel) {
  sent_ = panel.end();
  ++in_flight_;
}

bool PanelResults::has_enough() const { return of_ == comm::PanelOf::k_blocks && in_flight_ >= kInFlight; }

PanelResults::Taken PanelResults::take(const comm::Frame& frame, const comm::Header& header) {
  const comm::Header& asked = whole_.header;
  const bool by_depth = of_ == comm::PanelOf::k_blocks;
  const bool of_task = header.work == asked.work && header.gemm == asked.gemm && header.attention == asked.attention &&
                       header.wire == asked.wire && header.output == asked.output && header.device == asked.device;
  if (!of_task) return Taken::missing;
  comm::Panel part = header.panel;
  if (by_depth && part.of == comm::PanelOf::k_blocks) {
    if (part.end() > sent_ || part.end() == units_) return Taken::unasked;
    if (part.first < multiplied_) return Taken::again;
    if (part.first > multiplied_) return Taken::missing;
    multiplied_ = part.end();
    --in_flight_;
    comm::set_timing(whole_, asked.compute + header.compute, header.computed);
    return Taken::more;
  }
  if (by_depth && part.whole()) part = {.of = comm::PanelOf::rows, .first = 0, .count = parts_};
  if (part.of != (by_depth ? comm::PanelOf::rows : of_)) return Taken::missing;
  if (part.first < next_) return Taken::again;
  if (part.first > next_) return Taken::missing;
  if (by_depth ? sent_ < units_ : part.end() > sent_) return Taken::unasked;
  const comm::ResultView view = comm::view_result(frame, header);
  for (std::size_t i = 0; i < whole_.outputs.size(); ++i) {
    const std::size_t part_bytes = whole_.outputs[i].size() / static_cast<std::size_t>(parts_);
    if (part_bytes == 0) continue;
    std::memcpy(whole_.outputs[i].data() + static_cast<std::size_t>(next_) * part_bytes, view.outputs[i].data(),
                view.outputs[i].size());
  }
  comm::set_timing(whole_, asked.compute + header.compute, header.computed);
  next_ = part.end();
  return next_ == parts_ ? Taken::whole : Taken::more;
}

comm::Frame PanelResults::frame() { return std::move(whole_.frame); }

}  // namespace cleave::server
