// Operands out.
#include "gather.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "attention_pair.hpp"
#include "blocks.hpp"
#include "cleave/base/error.hpp"
#include "cleave/base/resident.hpp"
#include "cleave/plan/panels.hpp"
#include "head_rows.hpp"

namespace cleave::server {

// The cost model counts the header that the codec writes; neither component may see the other.
static_assert(plan::kMessageHeader == Bytes(comm::kHeaderBytes));
static_assert(sched::kDigestPayload == Bytes(sizeof(SipTag)));

namespace {

using model::Operation;
using model::OpKind;

// The first of `count` equal parts of so many units, or none where there is nothing to divide.
comm::MessagePart part_of(comm::PartOf of, std::int64_t units, std::int64_t count) {
  count = std::min(units, count);
  return count > 1 ? comm::MessagePart{.of = of, .first = 0, .count = (units + count - 1) / count}
                   : comm::MessagePart{};
}

}  // namespace

// Blocks that may be checked are packed, all of them: a device that is sent some and reads others would know which will
// be looked at. No device still reads a tensor in place when it is used again: its operation ended with the last of its
// blocks.
std::span<const comm::OperandPlace> Gather::places_of(const sched::Tasklet& tasklet, const Reader& reader) {
  const Operation& op = work_.operation(tasklet.op);
  const plan::TaskletPlan& piece = tasklet.piece;
  if (reader.transport == nullptr || work_.wire() != DType::f32 || verifier_.looks_at_blocks()) return {};
  places_.clear();
  const auto add = [&](const float* data, std::int64_t ld) {
    const auto offset = reader.transport->reached(reader.rank, data);
    if (offset) places_.push_back({*offset, ld});
    return offset.has_value();
  };
  if (op.kind == OpKind::gemm) {
    const kernels::ConstMatrix a = work_.operand_a(op, piece.box);
    const kernels::ConstMatrix b = work_.operand_b(op, piece.box);
    if (!add(a.data, std::max(a.row_stride, a.col_stride)) || !add(b.data, std::max(b.row_stride, b.col_stride))) {
      return {};
    }
    return places_;
  }
  for (const PairTensor& operand : pair_operands(op)) {
    const kernels::Rows all = work_.tensors().rows(operand.view);
    for (std::int64_t pair = piece.pairs.pair0; pair < piece.pairs.pair1; ++pair) {
      for (std::int64_t h = 0; h < heads_of(op.attention, operand.queries); ++h) {
        const kernels::Rows head = pair_head(op.attention, pair, all, operand.queries, h);
        if (!add(head.data, head.ld)) return {};
      }
    }
  }
  return places_;
}

// Each part lies in rows of what the server keeps: rows of A where it is stored by rows; where A is stored by columns
// and B by rows, as of weight gradients, runs of k.
comm::MessagePart Gather::first_part(const sched::Tasklet& tasklet, Bytes room) {
  if (tasklet.is_witness()) return {};  // its answer is of the whole
  const Operation& op = work_.operation(tasklet.op);
  const GemmBox& box = tasklet.piece.box;
  const std::int64_t element = size_of(work_.wire());
  if (op.kind != OpKind::gemm) {
    const std::int64_t pairs = tasklet.piece.pairs.count();
    const std::int64_t bytes = comm::frame_bytes(work_.header_of(tasklet));
    return part_of(comm::PartOf::pairs, pairs, std::min(limits_.most, bytes / limits_.least_bytes));
  }
  if (work_.operand_a(op).col_stride == 1) {
    return part_of(
        comm::PartOf::rows, box.m(),
        std::min({limits_.most, box.m() / limits_.least_rows, box.m() * box.k() * element / limits_.least_bytes}));
  }
  if (work_.operand_b(op).col_stride != 1 || tasklet.columns.valid()) return {};
  const std::int64_t bytes = (box.m() + box.n()) * box.k() * element;
  comm::MessagePart part =
      part_of(comm::PartOf::k_blocks, k_blocks(box.k()), std::min(limits_.most, bytes / limits_.least_bytes));
  const bool many_blocks = k_blocks(op.gemm.k) > 1;
  const auto needs = [&](std::int64_t blocks) {
    return gemm_streamed_bytes({box.m(), box.n(), box.k()}, work_.wire(), many_blocks,
                               work_.header_of(tasklet).gemm.whole_depth(), 2 * blocks * kBlockK);
  };
  while (part.count > 1 && needs(part.count) > room) --part.count;
  return needs(part.count) <= room ? part : comm::MessagePart{};
}

comm::Frame Gather::message(const sched::Tasklet& tasklet, const comm::MessagePart& part, const FaultOrder& fault,
                            const Reader& reader) {
  const Profile::Scope scope(work_.profile(), Phase::pack, tasklet.op);
  const Operation& op = work_.operation(tasklet.op);
  const plan::TaskletPlan& piece = tasklet.piece;
  if (tasklet.stays_on_device()) return columns_message(tasklet);
  const InProgress& state = work_.open(op);
  std::span<const comm::OperandPlace> places;
  if (part.whole() && !tasklet.columns.valid()) places = places_of(tasklet, reader);
  comm::Header header = work_.header_of(tasklet);
  header.part = part;
  header.fault = fault.fault;
  header.sequence = fault.seed;
  header.in_place = !places.empty();
  header.digest = tasklet.is_witness();
  kernels::ConstMatrix a, b;
  if (op.kind == OpKind::gemm) {
    a = work_.operand_a(op, piece.box);
    b = work_.operand_b(op, piece.box);
    header.a_by_columns = a.col_stride != 1;
    header.b_by_columns = b.col_stride != 1 && header.columns != comm::Columns::kept;
  }

  comm::TaskDraft draft = comm::begin_task(header);
  if (header.digest) std::ranges::copy(verifier_.key_of(tasklet), draft.key.begin());
  if (header.in_place) {
    std::copy(places.begin(), places.end(), draft.places.begin());
  } else if (op.kind == OpKind::gemm) {
    gather_gemm(tasklet, a, b, draft);
  } else {
    gather_attention(tasklet, draft);
  }
  if (op.kind == OpKind::gemm && header.gemm.blocks > 1) {
    const GemmBox& box = piece.box;
    const std::int64_t row = part.of == comm::PartOf::rows ? part.first : 0;
    std::copy_n(state.row_exponents.begin() + box.m0 + row, draft.row_exponents.size(), draft.row_exponents.begin());
    std::copy_n(state.column_exponents.begin() + box.n0, draft.column_exponents.size(), draft.column_exponents.begin());
  }
  return header.in_place ? comm::seal(std::move(draft)) : comm::seal_header(std::move(draft));
}

// Columns of a parameter are there before the operation's other operand is, so nothing of the operation is opened.
comm::Frame Gather::columns_message(const sched::Tasklet& tasklet) {
  const Operation& op = work_.operation(tasklet.op);
  const GemmBox& box = tasklet.piece.box;
  const Lines b = lines_of(work_.operand_b(op, box), box.k(), box.n());
  comm::Header header = work_.header_of(tasklet);
  header.b_by_columns = b.are_columns;
  comm::TaskDraft draft = comm::begin_task(header);
  gather(work_.parallel(), b.matrix, b.count, b.length, work_.wire(), draft.operands[1].data());
  if (header.gemm.blocks > 1) {
    if (!work_.take_column_exponents(op, box.n0, draft.column_exponents)) {
      throw CheckFailure(fmt::format("an operand of {} is not finite: the training has diverged", op.name));
    }
  }
  return comm::seal_header(std::move(draft));
}

// B goes first, because A is multiplied by B x, depth by depth where both come in parts of K blocks. Each band is
// looked at while it is in the cache that it was gathered through: from memory, reading the operands again would be
// most of the price of checking.
void Gather::gather_gemm(const sched::Tasklet& tasklet, kernels::ConstMatrix a, kernels::ConstMatrix b,
                         comm::TaskDraft& draft) {
  const GemmBox& box = tasklet.piece.box;
  const comm::Header& header = draft.header;
  const DType wire = work_.wire();
  const bool begins = header.part.first == 0, by_depth = header.part.of == comm::PartOf::k_blocks;
  const std::int64_t k0 = header.k0(), depth = header.depth();
  kernels::ProductCheck* const check = verifier_.check_of(tasklet, begins);
  const auto in_bands = [&](kernels::ConstMatrix from, std::int64_t rows, std::int64_t cols, std::int64_t before,
                            std::byte* to, auto take) {
    const Lines lines = lines_of(from, rows, cols);
    const auto stored = lines.are_columns ? kernels::Stored::by_columns : kernels::Stored::by_rows;
    if (!check) return gather(work_.parallel(), lines.matrix, lines.count, lines.length, wire, to);
    const std::int64_t band = checked_band(lines.length);
    for (std::int64_t i = 0; i < lines.count; i += band) {
      const std::int64_t count = std::min(band, lines.count - i);
      std::byte* first = to + i * lines.length * size_of(wire);
      gather(lines.matrix.from(i, 0), count, lines.length, wire, first);
      const Verifier::Charge charge(verifier_);
      (check->*take)(stored, first, before + i, count);
    }
  };
  if (header.columns == comm::Columns::kept) {
    if (check && begins) {  // what the device has of it is looked at once more
      KeptVector<std::byte> columns(static_cast<std::size_t>(box.k() * box.n() * size_of(wire)));
      in_bands(b, box.k(), box.n(), 0, columns.data(), &kernels::ProductCheck::take_b);
    }
  } else if (begins || by_depth) {
    in_bands(b.from(k0, 0), depth, box.n(), k0, draft.operands[1].data(), &kernels::ProductCheck::take_b);
  }
  const std::int64_t row = by_depth ? 0 : header.part.first;
  in_bands(a.from(row, k0), header.rows(), depth, row + k0, draft.operands[0].data(), &kernels::ProductCheck::take_a);
}

void Gather::gather_attention(const sched::Tasklet& tasklet, comm::TaskDraft& draft) {
  const Operation& op = work_.operation(tasklet.op);
  const DType wire = work_.wire();
  const std::int64_t head = op.attention.seq * op.attention.head_dim;
  const PairTensors operands = pair_operands(op);
  const std::int64_t pair0 = tasklet.piece.pairs.pair0 + draft.header.part.first;
  const PairRange pairs{pair0, pair0 + draft.header.pairs()};
  for (std::size_t i = 0; i < operands.size(); ++i) {
    for_head_rows(work_.parallel(), op.attention, pairs, work_.tensors().rows(operands[i].view), operands[i].queries,
                  [&](const HeadRows& run) {
                    gather_heads(run.rows, run.heads, wire, draft.operands[i].data() + run.element * size_of(wire),
                                 head);
                  });
  }
}

}  // namespace cleave::server
