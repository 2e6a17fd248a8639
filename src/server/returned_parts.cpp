// Rows of C, or pairs of each output of attention, which lie one after another in the whole result.
#include "returned_parts.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cleave::server {

namespace {

/// Parts of K blocks that a device may have without having multiplied them.
constexpr std::int64_t kInFlight = 2;

comm::Header whole_of(const comm::Header& part) {
  comm::Header header = comm::result_header(part);
  header.part = {};
  return header;
}

}  // namespace

ReturnedParts::ReturnedParts(const comm::Header& part)
    : of_(part.part.of),
      units_(part.part_units()),
      cells_(part.work == comm::Work::gemm ? part.gemm.m : part.attention.pairs),
      whole_(comm::begin_result(whole_of(part))) {}

void ReturnedParts::sent(const comm::MessagePart& part) {
  sent_ = part.end();
  ++in_flight_;
}

bool ReturnedParts::has_enough() const { return of_ == comm::PartOf::k_blocks && in_flight_ >= kInFlight; }

ReturnedParts::Taken ReturnedParts::take(const comm::Frame& frame, const comm::Header& header) {
  const comm::Header& asked = whole_.header;
  const bool by_depth = of_ == comm::PartOf::k_blocks;
  const bool of_task = header.work == asked.work && header.gemm == asked.gemm && header.attention == asked.attention &&
                       header.wire == asked.wire && header.output == asked.output && header.device == asked.device;
  if (!of_task) return Taken::missing;
  comm::MessagePart part = header.part;
  if (by_depth && part.of == comm::PartOf::k_blocks) {
    if (part.end() > sent_ || part.end() == units_) return Taken::unasked;
    if (part.first < multiplied_) return Taken::again;
    if (part.first > multiplied_) return Taken::missing;
    multiplied_ = part.end();
    --in_flight_;
    comm::set_timing(whole_, asked.compute + header.compute, header.computed);
    return Taken::more;
  }
  if (by_depth && part.whole()) part = {.of = comm::PartOf::rows, .first = 0, .count = cells_};
  if (part.of != (by_depth ? comm::PartOf::rows : of_)) return Taken::missing;
  if (part.first < next_) return Taken::again;
  if (part.first > next_) return Taken::missing;
  if (by_depth ? sent_ < units_ : part.end() > sent_) return Taken::unasked;
  const comm::ResultView view = comm::view_result(frame, header);
  for (std::size_t i = 0; i < whole_.outputs.size(); ++i) {
    const std::size_t cell_bytes = whole_.outputs[i].size() / static_cast<std::size_t>(cells_);
    if (cell_bytes == 0) continue;
    std::memcpy(whole_.outputs[i].data() + static_cast<std::size_t>(next_) * cell_bytes, view.outputs[i].data(),
                view.outputs[i].size());
  }
  comm::set_timing(whole_, asked.compute + header.compute, header.computed);
  next_ = part.end();
  return next_ == cells_ ? Taken::whole : Taken::more;
}

comm::Frame ReturnedParts::frame() { return std::move(whole_.frame); }

}  // namespace cleave::server
