// Legal headers and the sizes that they ask for.
#include "layout.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace cleave::comm {

namespace {

// Sizes stay below 2^31 and products are cut at the frame limit, so that no 64-bit product can overflow.
constexpr std::int64_t kMaxExtent = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kMaxPanels = std::int64_t{1} << 20;
constexpr std::int64_t kMostLossBits = 31;
constexpr std::uint8_t kLastPanelOrder = 3;  // plan::PanelOrder::result_resident

constexpr std::int64_t kTooMany = kMaxFrameBytes + 1;

// Product of factors in [0, kMaxExtent], or kTooMany when it exceeds the limit of a frame.
std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t result = 1;
  for (const std::int64_t factor : factors) {
    if (factor == 0) return 0;
    result *= factor;  // below 2^31 * 2^31
    if (result > kMaxFrameBytes) return kTooMany;
  }
  return result;
}

bool extent(std::int64_t value) { return value >= 1 && value <= kMaxExtent; }

bool span_of_time(Seconds time) {
  return std::isfinite(time.value()) && time.value() >= 0 && time.value() <= kMaxSeconds && !std::signbit(time.value());
}

bool zero(Seconds time) { return time.value() == 0 && !std::signbit(time.value()); }

bool wire_type(DType type) { return type == DType::f32 || type == DType::bf16 || type == DType::f16; }

std::optional<Fault> check_geometry(const Header& header) {
  const GemmBlock& g = header.gemm;
  const AttentionBlock& a = header.attention;
  const StageTask& s = header.stage_task;
  if (header.work == Work::stage) {
    if (g != GemmBlock{} || a != AttentionBlock{} || header.output != header.wire) return Fault::field;
    if (s.errand < StageErrand::begin || s.errand > StageErrand::witness_backward) return Fault::field;
    // Operands are kept for nobody where a backward pass begins, and that alone.
    const bool may_begin =
        s.errand == StageErrand::forward || s.errand == StageErrand::recompute || s.errand == StageErrand::backward;
    if (s.stage < 0 || s.owner < (may_begin ? kForNoOwner : -1) || s.sequence < 0 || s.sequence > kMaxExtent ||
        s.row < 0 || s.rows < 0)
      return Fault::geometry;
    if (s.operand_bytes < 0 || s.result_bytes < 0 || s.operand_bytes > kMaxFrameBytes ||
        s.result_bytes > kMaxFrameBytes)
      return Fault::geometry;
    if (s.errand == StageErrand::hold ? s.memory < 0 : s.memory != 0) return Fault::field;
    if (s.errand == StageErrand::begin && s.operand_bytes != 0) return Fault::field;
    const bool digested = header.digest || header.kind == Kind::digest;
    if (digested ? !s.may_be_digested() : s.is_witness() && header.kind == Kind::task) return Fault::field;
    if (!s.answered() && (s.result_bytes != 0 || header.kind != Kind::task)) return Fault::field;
    return std::nullopt;
  }
  if (s != StageTask{}) return Fault::field;
  if (header.work == Work::gemm) {
    if (a != AttentionBlock{}) return Fault::field;
    const bool rows = header.columns == Columns::bring ? g.m == 0 : extent(g.m);
    if (!rows || !extent(g.n) || !extent(g.k) || !extent(g.blocks)) return Fault::geometry;
    if (g.first_block < 0 || g.first_block + k_blocks(g.k) > g.blocks) return Fault::geometry;
    if (g.seq < 0 || (g.seq > 0 && header.columns != Columns::along)) return Fault::geometry;
    if (g.loss_bits < 0 || g.loss_bits > kMostLossBits) return Fault::geometry;
    if (g.loss_bits > 0 && (g.seq == 0 || header.wire != DType::f16)) return Fault::geometry;
    // Only the last K block of an operation may be shorter than the others.
    if (g.first_block + k_blocks(g.k) < g.blocks && g.k % kBlockK != 0) return Fault::geometry;
    const bool wide = header.kind == Kind::result && g.seq > 0 && header.output == DType::i64;
    if (g.whole_depth() ? header.output != header.wire : header.output != partial_sum_type(header.wire) && !wide)
      return Fault::field;
  } else {
    if (g != GemmBlock{}) return Fault::field;
    if (!extent(a.pairs) || !extent(a.seq) || !extent(a.head_dim) || !extent(a.queries)) return Fault::geometry;
    if (header.output != header.wire) return Fault::field;
  }
  return std::nullopt;
}

// Some of a tasklet, in an order that can be taken up where it was left: each part lies in one piece where it is
// stored.
bool is_part(const Header& header) {
  if (header.work == Work::stage) return false;
  const MessagePart& part = header.part;
  const bool gemm = header.work == Work::gemm, task = header.kind == Kind::task;
  switch (part.of) {
    case PartOf::rows:
      if (!gemm || header.a_by_columns || header.columns == Columns::bring) return false;
      break;
    case PartOf::k_blocks:
      if (!gemm || header.b_by_columns || header.a_by_columns != task || header.columns != Columns::along) return false;
      break;
    case PartOf::pairs:
      if (gemm) return false;
      break;
    default: return false;
  }
  const std::int64_t units = header.part_units();
  return !header.in_place && part.first >= 0 && part.count >= 1 && part.count < units &&
         part.first <= units - part.count;
}

}  // namespace

std::optional<Fault> check_fields(const Header& header) {
  const bool task = header.kind == Kind::task;
  const bool block = has_block(header.kind);
  const bool refused = header.kind == Kind::refused;
  if (header.kind < Kind::hello || header.kind > Kind::digest) return Fault::kind;

  const bool counted = header.kind == Kind::ping || header.kind == Kind::pong || task;
  if (!counted && header.sequence != 0) return Fault::field;
  if (block || refused || header.kind == Kind::release) {
    if (!header.tasklet.valid() || !header.device.valid()) return Fault::field;
  } else if (header.tasklet != TaskletId{} || header.device != DeviceId{}) {
    return Fault::field;
  }
  if (block ? header.op.value < -1 || header.op.value > kMaxExtent : header.op != OpId{}) return Fault::field;
  if (refused ? header.reason < Reason::memory || header.reason > Reason::absent : header.reason != Reason::none) {
    return Fault::field;
  }

  if (task) {
    if (header.fault > InjectedFault::huge || header.panel_order > kLastPanelOrder) return Fault::field;
    if (header.panels < 1 || header.panels > kMaxPanels) return Fault::field;
  } else if (header.fault != InjectedFault::none || header.panel_order != 0 || header.panels != 0) {
    return Fault::field;
  }
  const bool gemm_task = task && header.work == Work::gemm;
  if (!gemm_task && (header.a_by_columns || header.b_by_columns || header.columns != Columns::along)) {
    return Fault::field;
  }
  if (header.columns > Columns::kept) return Fault::field;
  if (header.a_by_columns && header.columns == Columns::bring) return Fault::field;
  if (header.b_by_columns && header.columns == Columns::kept) return Fault::field;
  if (header.columns == Columns::kept ? !header.brought_by.valid() : header.brought_by != TaskletId{}) {
    return Fault::field;
  }
  if (header.digest && (!task || header.columns != Columns::along)) return Fault::field;
  if (header.in_place && (!task || header.wire != DType::f32 || header.columns != Columns::along)) return Fault::field;
  if (header.kind == Kind::result || header.kind == Kind::digest) {
    if (!span_of_time(header.compute) || !span_of_time(header.computed)) return Fault::field;
  } else if (!zero(header.compute) || !zero(header.computed)) {
    return Fault::field;
  }

  if (!block) {
    const bool unused = header.work == Work::none && header.wire == DType::f32 && header.output == DType::f32 &&
                        header.gemm == GemmBlock{} && header.attention == AttentionBlock{} &&
                        header.stage_task == StageTask{} && header.part == MessagePart{};
    return unused ? std::nullopt : std::optional(Fault::field);
  }
  if (header.work < Work::gemm || header.work > Work::stage) return Fault::field;
  if (header.work == Work::stage && header.in_place) return Fault::field;
  if (!wire_type(header.wire)) return Fault::field;
  if (const auto fault = check_geometry(header)) return fault;
  const bool of_digest = header.digest || header.kind == Kind::digest;
  if (header.part != MessagePart{} && (of_digest || !is_part(header))) return Fault::geometry;
  return std::nullopt;
}

Layout layout_of(const Header& header) {
  Layout layout;
  std::int64_t end = kHeaderBytes;
  const auto place = [&](std::int64_t bytes) {
    if (bytes == 0 || !layout.fits) return Section{};
    const std::int64_t offset = (end + kAlignment - 1) / kAlignment * kAlignment;
    if (bytes > kMaxFrameBytes - offset) {
      layout.fits = false;
      return Section{};
    }
    end = offset + bytes;
    return Section{offset, bytes};
  };

  constexpr std::int64_t kKeyBytes = sizeof(SipKey);
  static_assert(sizeof(SipTag) == kKeyBytes);
  if (header.kind == Kind::digest) {
    layout.keyed = place(kKeyBytes);
    layout.frame_bytes = end;
    return layout;
  }
  const bool task = header.kind == Kind::task;
  const std::int64_t element = size_of(task ? header.wire : header.output);
  const auto place_places = [&](std::int64_t count) {
    layout.places = place(product({count, static_cast<std::int64_t>(sizeof(OperandPlace))}));
  };
  if (header.work == Work::stage) {
    layout.arrays[0] = place(task ? header.stage_task.operand_bytes : header.stage_task.result_bytes);
  } else if (header.work == Work::gemm) {
    const GemmBlock& g = header.gemm;
    // A of no rows takes no bytes.
    const bool by_depth = header.part.of == PartOf::k_blocks, begins = header.part.first == 0;
    const bool brings_b = (begins || by_depth) && header.columns != Columns::kept;
    if (!task) {
      if (!by_depth) layout.arrays[0] = place(product({header.rows(), g.n, element}));
    } else if (header.in_place) {
      place_places(2);
    } else {
      layout.arrays[0] = place(product({header.rows(), header.depth(), element}));
      if (brings_b) layout.arrays[1] = place(product({header.depth(), g.n, element}));
    }
    if (task && g.blocks > 1 && (begins || !by_depth)) {
      layout.row_exponents = place(header.rows() * 2);
      if (brings_b) layout.column_exponents = place(g.n * 2);
    }
  } else {
    const AttentionBlock& a = header.attention;
    const bool backward = header.work == Work::attention_backward;
    if (header.in_place) {
      const std::int64_t of_queries = product({a.pairs, a.queries});
      place_places(std::min(kTooMany, (backward ? 2 : 1) * of_queries + 2 * a.pairs));
    } else {
      const std::int64_t key = product({header.pairs(), a.seq, a.head_dim, element});
      const std::int64_t query = key > kMaxFrameBytes ? kTooMany : product({key, a.queries});
      layout.arrays[0] = place(query);
      if (task || backward) {
        layout.arrays[1] = place(key);
        layout.arrays[2] = place(key);
      }
      if (task && backward) layout.arrays[3] = place(query);
    }
  }
  if (header.digest) layout.keyed = place(kKeyBytes);
  layout.frame_bytes = end;
  return layout;
}

}  // namespace cleave::comm
