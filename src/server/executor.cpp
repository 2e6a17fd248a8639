// Operands out, blocks in.
#include "executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "attention_pair.hpp"
#include "blocks.hpp"
#include "cleave/base/error.hpp"
#include "cleave/base/resident.hpp"
#include "cleave/kernels/wire.hpp"
#include "rounded_block.hpp"

namespace cleave::server {

namespace {

using model::Operation;
using model::OpKind;

comm::Work work_code(OpKind kind) {
  switch (kind) {
    case OpKind::attention_forward: return comm::Work::attention_forward;
    case OpKind::attention_backward: return comm::Work::attention_backward;
    default: return comm::Work::gemm;
  }
}

// The first of `count` equal parts of so many units, or none where there is nothing to divide.
comm::MessagePart part_of(comm::PartOf of, std::int64_t units, std::int64_t count) {
  count = std::min(units, count);
  return count > 1 ? comm::MessagePart{.of = of, .first = 0, .count = (units + count - 1) / count}
                   : comm::MessagePart{};
}

// Heads of one sequence that a run of pairs has: side by side in a tensor, one after another in a message.
struct HeadRows {
  kernels::Rows rows;  // some rows of all of them
  std::int64_t heads = 0;
  std::int64_t element = 0;  // where the first one's first row begins in the message
};

// Calls visit(HeadRows) until all rows of all heads of the pairs have passed, in any order, on any thread.
template <class Visit>
void for_head_rows(kernels::Parallel& parallel, const AttentionShape& shape, const PairRange& pairs, kernels::Rows all,
                   bool queries, const Visit& visit) {
  if (pairs.count() == 0) return;
  const std::int64_t of_pair = heads_of(shape, queries), of_sequence = shape.n_kv_head;
  const std::int64_t first = pairs.pair0 / of_sequence, sequences = (pairs.pair1 - 1) / of_sequence + 1 - first;
  const std::int64_t band = rows_of_band(std::min(of_sequence, pairs.count()) * of_pair * shape.head_dim);
  const std::int64_t bands = (shape.seq + band - 1) / band;
  parallel.for_chunks(sequences * bands, 1, [&](std::int64_t chunk, std::int64_t) {
    const std::int64_t sequence = first + chunk / bands, row = chunk % bands * band;
    const std::int64_t begin = std::max(pairs.pair0, sequence * of_sequence);
    const std::int64_t end = std::min(pairs.pair1, (sequence + 1) * of_sequence), heads = (end - begin) * of_pair;
    const kernels::Rows head = pair_head(shape, begin, all, queries, 0);
    visit(HeadRows{{head.row(row), std::min(band, shape.seq - row), heads * shape.head_dim, head.ld},
                   heads,
                   ((begin - pairs.pair0) * of_pair * shape.seq + row) * shape.head_dim});
  });
}

}  // namespace

Executor::Executor(ParameterStore& parameters, const ExecutorOptions& options)
    : parameters_(parameters),
      options_(options),
      parallel_(options.threads),
      draws_(options.verification.seed, Purpose::verification) {
  if (options.profile) profile_.enable();
}
Executor::~Executor() = default;

void Executor::begin_step(const model::StepGraph& graph, const StepInputs& inputs) {
  std::unique_ptr<TensorStore>& store = stores_[&graph];
  if (!store) store = std::make_unique<TensorStore>(graph, parameters_, pool_);
  if (store_ != nullptr && store_ != store.get()) store_->begin_step({}, {});  // gives its activations back
  store_ = store.get();
  graph_ = &graph;
  inputs_ = inputs;
  for (auto& entry : in_progress_) {
    if (!entry.second.sums.empty()) pool_.give(std::move(entry.second.sums));
  }
  in_progress_.clear();
  updating_ = false;
  store_->begin_step(inputs.tokens, inputs.targets);
}

kernels::ConstMatrix Executor::operand_a(const Operation& op) {
  const kernels::Rows rows = store_->rows(op.in[0]);
  const kernels::ConstMatrix stored(rows.data, rows.ld);
  return op.trans_a ? stored.transposed() : stored;
}

kernels::ConstMatrix Executor::operand_b(const Operation& op) {
  const kernels::Rows rows = store_->rows(op.in[1]);
  const kernels::ConstMatrix stored(rows.data, rows.ld);
  return op.trans_b ? stored.transposed() : stored;
}

Executor::InProgress& Executor::open(const Operation& op) {
  const auto found = in_progress_.find(op.id);
  if (found != in_progress_.end()) return found->second;
  store_->begin(op);
  InProgress& state = in_progress_[op.id];
  if (op.kind == OpKind::gemm && k_blocks(op.gemm.k) > 1) {
    state.row_exponents.resize(static_cast<std::size_t>(op.gemm.m));
    state.column_exponents.resize(static_cast<std::size_t>(op.gemm.n));
    // Of the operands before they are rounded to the wire type: rounding changes a norm by far less than the headroom.
    const auto rows = kernels::norm_exponents(parallel_, operand_a(op), op.gemm.m, op.gemm.k, state.row_exponents);
    const auto columns =
        kernels::norm_exponents(parallel_, operand_b(op).transposed(), op.gemm.n, op.gemm.k, state.column_exponents);
    state.representable = rows == kernels::ProductStatus::ok && columns == kernels::ProductStatus::ok;
  }
  if (!state.representable) {
    throw CheckFailure(fmt::format("an operand of {} is not finite: the training has diverged", op.name));
  }
  return state;
}

comm::Header Executor::header_of(const sched::Tasklet& tasklet) const {
  const Operation& op = graph_->operation(tasklet.op);
  const plan::TaskletPlan& piece = tasklet.piece;
  comm::Header header;
  header.kind = comm::Kind::task;
  header.tasklet = tasklet.id;
  header.device = piece.device;
  header.op = op.id;
  header.work = work_code(op.kind);
  header.wire = header.output = options_.wire;
  header.panel_order = static_cast<std::uint8_t>(piece.order);
  header.panels = piece.panels;
  if (op.kind == OpKind::gemm) {
    if (tasklet.brings_columns()) {
      header.columns = comm::Columns::bring;
    } else if (tasklet.columns.valid()) {
      header.columns = comm::Columns::kept;
      header.brought_by = tasklet.columns;
    }
    header.gemm = {piece.box.m(), piece.box.n(), piece.box.k(), k_blocks(op.gemm.k), piece.box.k0 / kBlockK};
    if (!header.gemm.whole_depth()) header.output = partial_sum_type(options_.wire);
  } else {
    header.attention = {piece.pairs.count(), op.attention.seq, op.attention.head_dim, op.attention.queries_per_pair()};
  }
  return header;
}

// Blocks that may be checked are packed, all of them: a device that is sent some and reads others would know which will
// be looked at. A tensor that is used again before a device has read it was no longer waited for: its operation ends
// with all its blocks.
std::span<const comm::OperandPlace> Executor::places_of(const sched::Tasklet& tasklet, const Reader& reader) {
  const Operation& op = graph_->operation(tasklet.op);
  const plan::TaskletPlan& piece = tasklet.piece;
  if (reader.transport == nullptr || options_.wire != DType::f32) return {};
  if (options_.verification.mode != Verification::Mode::off) return {};
  places_.clear();
  const auto add = [&](const float* data, std::int64_t ld) {
    const auto offset = reader.transport->reached(reader.rank, data);
    if (offset) places_.push_back({*offset, ld});
    return offset.has_value();
  };
  if (op.kind == OpKind::gemm) {
    const kernels::ConstMatrix a = operand_a(op, piece.box);
    const kernels::ConstMatrix b = operand_b(op, piece.box);
    if (!add(a.data, std::max(a.row_stride, a.col_stride)) || !add(b.data, std::max(b.row_stride, b.col_stride))) {
      return {};
    }
    return places_;
  }
  for (const PairTensor& operand : pair_operands(op)) {
    const kernels::Rows all = store_->rows(operand.view);
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
comm::MessagePart Executor::first_part(const sched::Tasklet& tasklet, Bytes room) {
  const Operation& op = graph_->operation(tasklet.op);
  const GemmBox& box = tasklet.piece.box;
  const PartLimits& limits = options_.parts;
  const std::int64_t element = size_of(options_.wire);
  if (op.kind != OpKind::gemm) {
    const std::int64_t pairs = tasklet.piece.pairs.count();
    const std::int64_t bytes = comm::frame_bytes(header_of(tasklet));
    return part_of(comm::PartOf::pairs, pairs, std::min(limits.most, bytes / limits.least_bytes));
  }
  if (operand_a(op).col_stride == 1) {
    return part_of(
        comm::PartOf::rows, box.m(),
        std::min({limits.most, box.m() / limits.least_rows, box.m() * box.k() * element / limits.least_bytes}));
  }
  if (operand_b(op).col_stride != 1 || tasklet.columns.valid()) return {};
  const std::int64_t bytes = (box.m() + box.n()) * box.k() * element;
  comm::MessagePart part =
      part_of(comm::PartOf::k_blocks, k_blocks(box.k()), std::min(limits.most, bytes / limits.least_bytes));
  const bool many_blocks = k_blocks(op.gemm.k) > 1;
  const auto needs = [&](std::int64_t blocks) {
    return gemm_streamed_bytes({box.m(), box.n(), box.k()}, options_.wire, many_blocks,
                               header_of(tasklet).gemm.whole_depth(), 2 * blocks * kBlockK);
  };
  while (part.count > 1 && needs(part.count) > room) --part.count;
  return needs(part.count) <= room ? part : comm::MessagePart{};
}

comm::Frame Executor::gather(const sched::Tasklet& tasklet, const comm::MessagePart& part, const FaultOrder& fault,
                             const Reader& reader) {
  const Profile::Scope scope(profile_, Phase::pack, tasklet.op);
  const Operation& op = graph_->operation(tasklet.op);
  const plan::TaskletPlan& piece = tasklet.piece;
  if (tasklet.brings_columns()) return gather_columns(tasklet);
  const InProgress& state = open(op);
  std::span<const comm::OperandPlace> places;
  if (part.whole() && !tasklet.columns.valid()) places = places_of(tasklet, reader);
  comm::Header header = header_of(tasklet);
  header.part = part;
  header.fault = fault.fault;
  header.sequence = fault.seed;
  header.in_place = !places.empty();
  // Operands travel as they are stored: the device's kernel packs them either way, a transposition here would be one
  // more pass.
  kernels::ConstMatrix a, b;
  if (op.kind == OpKind::gemm) {
    a = operand_a(op, piece.box);
    b = operand_b(op, piece.box);
    header.a_by_columns = a.col_stride != 1;
    header.b_by_columns = b.col_stride != 1 && header.columns != comm::Columns::kept;
  }

  comm::TaskDraft draft = comm::begin_task(header);
  if (header.in_place) {
    std::copy(places.begin(), places.end(), draft.places.begin());
  } else if (op.kind == OpKind::gemm) {
    gather_operands(tasklet, a, b, draft);
  } else {
    const std::int64_t head = op.attention.seq * op.attention.head_dim;
    const PairTensors operands = pair_operands(op);
    const std::int64_t pair0 = piece.pairs.pair0 + part.first;
    const PairRange pairs{pair0, pair0 + header.pairs()};
    for (std::size_t i = 0; i < operands.size(); ++i) {
      for_head_rows(parallel_, op.attention, pairs, store_->rows(operands[i].view), operands[i].queries,
                    [&](const HeadRows& run) {
                      gather_heads(run.rows, run.heads, options_.wire,
                                   draft.operands[i].data() + run.element * size_of(options_.wire), head);
                    });
    }
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
comm::Frame Executor::gather_columns(const sched::Tasklet& tasklet) {
  const Operation& op = graph_->operation(tasklet.op);
  const GemmBox& box = tasklet.piece.box;
  const Lines b = lines_of(operand_b(op, box), box.k(), box.n());
  comm::Header header = header_of(tasklet);
  header.b_by_columns = b.are_columns;
  comm::TaskDraft draft = comm::begin_task(header);
  server::gather(parallel_, b.matrix, b.count, b.length, options_.wire, draft.operands[1].data());
  if (header.gemm.blocks > 1) {
    const auto status = kernels::norm_exponents(parallel_, operand_b(op).transposed().from(box.n0, 0), box.n(),
                                                op.gemm.k, draft.column_exponents);
    if (status != kernels::ProductStatus::ok) {
      throw CheckFailure(fmt::format("an operand of {} is not finite: the training has diverged", op.name));
    }
  }
  return comm::seal_header(std::move(draft));
}

void Executor::place_finished(const Operation& op, const GemmBox& box, std::span<const std::byte> block, DType type) {
  const kernels::Rows c = store_->rows(op.out[0]);
  scatter(parallel_, block.data(), type, op.accumulate, {c.row(box.m0) + box.n0, box.m(), box.n(), c.ld});
}

// Looks at each band of the result as it is put in its place: a block that turns out wrong is computed again, and that
// result is written over it.
bool Executor::place_if_representable(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const Operation& op = graph_->operation(tasklet.op);
  const DType type = result.header.output;
  std::atomic<bool> good{true};
  if (op.kind == OpKind::gemm) {
    const GemmBox& box = tasklet.piece.box;
    const kernels::Rows c = store_->rows(op.out[0]);
    parallel_.for_chunks(box.m(), rows_of_band(box.n()), [&](std::int64_t begin, std::int64_t end) {
      const std::byte* band = result.outputs[0].data() + begin * box.n() * size_of(type);
      if (!scatter_representable(band, type, {c.row(box.m0 + begin) + box.n0, end - begin, box.n(), c.ld}))
        good = false;
    });
    return good;
  }
  const std::int64_t head = op.attention.seq * op.attention.head_dim;
  const PairTensors results = pair_results(op);
  for (std::size_t i = 0; i < results.size(); ++i) {
    for_head_rows(parallel_, op.attention, tasklet.piece.pairs, store_->rows(results[i].view), results[i].queries,
                  [&](const HeadRows& run) {
                    if (!scatter_representable_heads(result.outputs[i].data() + run.element * size_of(type), head,
                                                     run.heads, type, run.rows))
                      good = false;
                  });
  }
  return good;
}

void Executor::place_partial(const Operation& op, const GemmBox& box, std::span<const std::byte> block, DType type) {
  InProgress& state = open(op);
  const std::int64_t size = size_of(type);
  if (state.sums.empty()) {
    const auto bytes = static_cast<std::size_t>(op.gemm.m * op.gemm.n * size);
    state.sums = pool_.take(bytes);
    std::memset(state.sums.data(), 0, bytes);
  }
  std::byte* first = state.sums.data() + (box.m0 * op.gemm.n + box.n0) * size;
  kernels::add_partial_sums(parallel_, box.m(), box.n(), {type, block.data(), box.n()}, {type, first, op.gemm.n});
  if (box.k0 == 0) state.finish.push_back(box);
}

Verdict Executor::place(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const Profile::Scope scope(profile_, Phase::place, tasklet.op);
  const Operation& op = graph_->operation(tasklet.op);
  const comm::Header asked = header_of(tasklet), &got = result.header;
  ++verification_.blocks;
  verification_.device_time += got.compute;
  if (got.work != asked.work || got.wire != asked.wire || got.output != asked.output || got.gemm != asked.gemm ||
      got.part != asked.part || got.attention != asked.attention || got.device != asked.device) {
    return accuse(tasklet, false, 0);
  }
  const bool added = op.kind == OpKind::gemm && (op.accumulate || !asked.gemm.whole_depth());
  if (added || is_drawn(tasklet)) {
    const Verdict verdict = check(tasklet, result);
    if (verdict != Verdict::good) return verdict;
  }
  if (!added) return place_if_representable(tasklet, result) ? Verdict::good : accuse(tasklet, false, 0);
  if (asked.gemm.whole_depth()) {
    place_finished(op, tasklet.piece.box, result.outputs[0], asked.output);
  } else {
    place_partial(op, tasklet.piece.box, result.outputs[0], asked.output);
  }
  return Verdict::good;
}

// A result that is not added to anything is finished where it stays.
void Executor::finish(const Operation& op, const InProgress& state) {
  const DType type = partial_sum_type(options_.wire);
  const kernels::Rows c = store_->rows(op.out[0]);
  for (const GemmBox& box : state.finish) {
    const kernels::Rows place(c.row(box.m0) + box.n0, box.m(), box.n(), c.ld);
    Block memory;
    if (op.accumulate) memory = pool_.take(static_cast<std::size_t>(box.m() * box.n()) * sizeof(float));
    const kernels::Rows block =
        op.accumulate ? kernels::Rows(reinterpret_cast<float*>(memory.data()), box.m(), box.n()) : place;
    const std::byte* first = state.sums.data() + (box.m0 * op.gemm.n + box.n0) * size_of(type);
    const auto status = kernels::finish_partial_sums(
        parallel_, box.m(), box.n(), {type, first, op.gemm.n}, part_of(state.row_exponents, box.m0, box.m()),
        part_of(state.column_exponents, box.n0, box.n()), {block.data, block.ld});
    if (status != kernels::ProductStatus::ok)
      throw CheckFailure(fmt::format("the result of {} is not finite", op.name));
    kernels::round_to(options_.wire, block);
    if (op.accumulate) {
      scatter(parallel_, memory.data(), DType::f32, true, place);
      pool_.give(std::move(memory));
    }
  }
}

void Executor::retire(OpId id) {
  const Profile::Scope scope(profile_, Phase::place, id);
  const Operation& op = graph_->operation(id);
  const auto found = in_progress_.find(id);
  if (found != in_progress_.end()) {
    finish(op, found->second);
    if (!found->second.sums.empty()) pool_.give(std::move(found->second.sums));
    in_progress_.erase(found);
  }
  store_->retire(op);
}

double Executor::loss() { return store_->scalar(graph_->loss) / static_cast<double>(graph_->batch * graph_->seq); }
double Executor::grad_norm() { return graph_->grad_norm.valid() ? store_->scalar(graph_->grad_norm) : 0.0; }

kernels::ConstRows Executor::logits() {
  const model::TensorSpec& spec = graph_->tensor(graph_->logits);
  return store_->rows({graph_->logits, 0, spec.rows, 0, spec.cols});
}

}  // namespace cleave::server
