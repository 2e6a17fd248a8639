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
                       header.wire == asked.wire && header.device == asked.device &&
                       (header.output == asked.output || may_be_wide());
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
  if (header.output != asked.output) return take_other_type(view, part);
  for (std::size_t i = 0; i < whole_.outputs.size(); ++i) {
    const std::size_t cell_bytes = whole_.outputs[i].size() / static_cast<std::size_t>(cells_);
    if (cell_bytes == 0) continue;
    std::memcpy(whole_.outputs[i].data() + static_cast<std::size_t>(next_) * cell_bytes, view.outputs[i].data(),
                view.outputs[i].size());
  }
  return taken(header, part);
}

ReturnedParts::Taken ReturnedParts::taken(const comm::Header& header, const comm::MessagePart& part) {
  comm::set_timing(whole_, whole_.header.compute + header.compute, header.computed);
  next_ = part.end();
  return next_ == cells_ ? Taken::whole : Taken::more;
}

bool ReturnedParts::may_be_wide() const {
  const comm::Header& asked = whole_.header;
  return asked.work == comm::Work::gemm && asked.gemm.seq > 0 && !asked.gemm.whole_depth();
}

// Sums of some rows need 64 bits: then those of all have them.
ReturnedParts::Taken ReturnedParts::take_other_type(const comm::ResultView& rows, const comm::MessagePart& part) {
  const auto widen = [](std::span<const std::byte> from, std::byte* to) {
    for (; !from.empty(); from = from.subspan(sizeof(std::int32_t)), to += sizeof(std::int64_t)) {
      std::int32_t narrow;
      std::memcpy(&narrow, from.data(), sizeof narrow);
      const std::int64_t wide = narrow;
      std::memcpy(to, &wide, sizeof wide);
    }
  };
  const auto done = static_cast<std::size_t>(next_ * whole_.header.gemm.n);
  if (whole_.header.output == DType::i32) {
    comm::Header header = whole_.header;
    header.output = DType::i64;
    if (comm::frame_bytes(header) < 0) return Taken::unasked;
    comm::ResultDraft all = comm::begin_result(header);
    widen(whole_.outputs[0].first(done * sizeof(std::int32_t)), all.outputs[0].data());
    whole_ = std::move(all);
  }
  std::byte* const to = whole_.outputs[0].data() + done * sizeof(std::int64_t);
  if (rows.header.output == DType::i32) {
    widen(rows.outputs[0], to);
  } else {
    std::memcpy(to, rows.outputs[0].data(), rows.outputs[0].size());
  }
  return taken(rows.header, part);
}

comm::Frame ReturnedParts::frame() { return std::move(whole_.frame); }

}  // namespace cleave::server
