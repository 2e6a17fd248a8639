// One case per kind of operation, on the columns that are wanted.
#include "cleave/pieces/chunk_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "cleave/base/error.hpp"
#include "cleave/kernels/activations.hpp"
#include "cleave/kernels/attention.hpp"
#include "cleave/kernels/copy.hpp"
#include "cleave/kernels/cross_entropy.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/norms.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "cleave/kernels/wire.hpp"

namespace cleave::pieces {

namespace {

using kernels::ConstMatrix;
using kernels::ConstRows;
using kernels::Rows;
using model::Operation;
using model::OpKind;
using model::TensorView;

// The heads [head, head + count) of rows, one after another, rounded to the wire type.
void gather_heads(ConstRows from, std::int64_t head, std::int64_t count, std::int64_t head_dim, DType wire, float* to) {
  for (std::int64_t h = 0; h < count; ++h) {
    float* const block = to + h * from.rows * head_dim;
    kernels::copy_rows(from.columns((head + h) * head_dim, (head + h + 1) * head_dim), block);
    kernels::round_to(wire, Rows(block, from.rows, head_dim));
  }
}

void scatter_heads(const float* from, std::int64_t head, std::int64_t count, std::int64_t head_dim, DType wire,
                   Rows to) {
  for (std::int64_t h = 0; h < count; ++h) {
    const Rows place = to.columns((head + h) * head_dim, (head + h + 1) * head_dim);
    for (std::int64_t i = 0; i < to.rows; ++i) std::copy_n(from + (h * to.rows + i) * head_dim, head_dim, place.row(i));
    kernels::round_to(wire, place);
  }
}

std::int64_t floats(Bytes bytes) { return bytes.value() / static_cast<std::int64_t>(sizeof(float)) + 1; }

template <class T>
T* enough(KeptVector<T>& memory, std::int64_t count) {
  if (std::ssize(memory) < count) memory.resize(static_cast<std::size_t>(count));
  return memory.data();
}

}  // namespace

float* ChunkMemory::take(std::int64_t floats) {
  constexpr std::size_t kLine = 64;
  const std::size_t bytes = (static_cast<std::size_t>(floats) * sizeof(float) + kLine - 1) / kLine * kLine;
  while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].capacity()) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) blocks_.emplace_back(pool_, std::max(bytes, kSmallestInHugePages));
  float* const place = reinterpret_cast<float*>(blocks_[block_].data() + used_);
  used_ += bytes;
  return place;
}

ChunkRun::ChunkRun(const Program& program, DType wire, kernels::Parallel& parallel, ChunkMemory& memory,
                   Parameters parameters)
    : program_(program), wire_(wire), parallel_(parallel), parameters_(std::move(parameters)), memory_(memory) {}

Bytes ChunkRun::packed() const {
  Bytes sum{0};
  for (const auto& entry : packed_) sum += entry.second.bytes();
  return sum;
}

std::int64_t ChunkRun::keys_of_sequence() const {
  const Operation* const op = program_.attention();
  return op == nullptr ? 0 : op->attention.n_kv_head * op->attention.seq * op->attention.head_dim;
}

SequenceState ChunkRun::open_forward() const {
  const auto size = static_cast<std::size_t>(keys_of_sequence());
  return {KeptVector<float>(size), KeptVector<float>(size), {}, {}, 0, {}};
}

SequenceState ChunkRun::open_backward() const {
  SequenceState state = open_forward();
  state.key_gradients.assign(state.keys.size(), 0.0F);
  state.value_gradients.assign(state.keys.size(), 0.0F);
  return state;
}

KeptValues::KeptValues(const Program& program, BlockPool& pool)
    : program_(&program),
      block_(&pool, static_cast<std::size_t>(program.kept_columns() * program.graph().seq) * sizeof(float)) {}

Rows KeptValues::rows(TensorId tensor, std::int64_t t0, std::int64_t count) const {
  const auto found = program_->kept().find(tensor);
  if (found == program_->kept().end()) return {};
  const std::int64_t cols = program_->graph().tensor(tensor).cols;
  return {reinterpret_cast<float*>(block_.data()) + found->second * program_->graph().seq + t0 * cols, count, cols};
}

void ChunkRun::begin(std::int64_t t0, std::int64_t rows, const KeptValues* kept) {
  kept_ = kept;
  places_.clear();
  rows_in_memory_.clear();
  memory_.reset();
  t0_ = t0;
  rows_ = rows;
  knows_row_sums_ = false;
}

void ChunkRun::know_row_sums(std::span<const float> top, std::span<const double> sum) {
  row_sums_.top.assign(top.begin(), top.end());
  row_sums_.sum.assign(sum.begin(), sum.end());
  row_sums_.loss.assign(sum.size(), 0.0);
  knows_row_sums_ = true;
}

Rows ChunkRun::rows_of(TensorId tensor) {
  const std::int64_t cols = program_.graph().tensor(tensor).cols;
  if (kept_ != nullptr) {
    if (const Rows kept = kept_->rows(tensor, t0_, rows_); kept.data != nullptr) return kept;
  }
  if (const auto place = places_.find(tensor); place != places_.end()) return {place->second, rows_, cols};
  float*& rows = rows_in_memory_[tensor];
  if (rows == nullptr) rows = memory_.take(rows_ * cols);
  return {rows, rows_, cols};
}

Rows ChunkRun::view(const TensorView& of) { return rows_of(of.tensor).columns(of.col0, of.col0 + of.cols); }

const float* ChunkRun::vector(const TensorView& of) const { return parameters_(of.tensor).data + of.col0; }

void ChunkRun::run(std::span<const Instruction> instructions, SequenceState& state,
                   std::span<const std::int32_t> targets) {
  for (const Instruction& instruction : instructions) run(instruction, state, targets);
}

std::span<const std::int16_t> ChunkRun::exponents_of(const Operation& op, ConstMatrix b, const Columns& run) {
  KeptVector<std::int16_t>& kept = column_exponents_[{op.id, run.begin}];
  if (std::ssize(kept) < run.count()) {
    kept.resize(static_cast<std::size_t>(run.count()));
    if (kernels::norm_exponents(parallel_, b.transposed(), run.count(), op.gemm.k, kept) != kernels::ProductStatus::ok)
      throw CheckFailure(fmt::format("a weight of {} is not finite", op.name));
  }
  return {kept.data(), static_cast<std::size_t>(run.count())};
}

// Block by block, so that a block's sum does not depend on the chunk that it comes in.
void ChunkRun::norm_backward(const Operation& op, SequenceState& state) {
  const bool layer = op.kind == OpKind::layer_norm_backward;
  const kernels::NormBackward of{.x = view(op.in[1]),
                                 .dy = view(op.in[0]),
                                 .gain = vector(op.in[2]),
                                 .mean = layer ? view(op.in[3]).data : nullptr,
                                 .rstd = view(op.in[layer ? 4 : 3]).data,
                                 .dx = op.out[0].valid() ? view(op.out[0]) : Rows()};
  const kernels::TokenBlocks blocks{rows_, rows_};
  const auto sums = static_cast<std::size_t>(of.sums());
  state.norm_sums.resize(sums);
  float* const gradients = enough(norm_gradients_, blocks.count() * of.sums());
  kernels::norm_backward_by_blocks(parallel_, of, blocks, gradients);
  for (std::int64_t block = 0; block < blocks.count(); ++block) {
    if (kernels::add_to_token_sums({gradients + block * of.sums(), sums}, state.norm_sums,
                                   program_.graph().loss_bits) != kernels::ProductStatus::ok)
      throw CheckFailure(fmt::format("a gradient of {} is not finite: the training has diverged", op.name));
  }
}

// From logits to their gradient.
void ChunkRun::lose(const Instruction& instruction, std::span<const std::int32_t> targets) {
  const Operation& op = *instruction.op;
  const Rows logits = view(op.in[0]);
  if (!knows_row_sums_) {
    row_sums_.top.resize(static_cast<std::size_t>(rows_));
    row_sums_.sum.resize(static_cast<std::size_t>(rows_));
    row_sums_.loss.resize(static_cast<std::size_t>(rows_));
    kernels::cross_entropy_rows(parallel_, logits, targets, row_sums_.top, row_sums_.sum, row_sums_.loss);
    loss_ = std::accumulate(row_sums_.loss.begin(), row_sums_.loss.end(), 0.0);
  }
  if (op.kind == OpKind::cross_entropy_loss) return;
  const ColumnSet columns = instruction.columns[1].moved(-op.out[1].col0);
  for (const Columns& run : columns.runs()) {
    kernels::cross_entropy_columns(parallel_, logits.columns(run.begin, run.end), run.begin, targets, row_sums_.top,
                                   row_sums_.sum, static_cast<float>(op.scalar));
  }
}

// To the wire type, as it travels in tiles.
ConstRows ChunkRun::rounded(ConstRows operand) {
  if (wire_ == DType::f32) return operand;
  float* const copy = enough(operand_, operand.rows * operand.cols);
  kernels::copy_rows(operand, copy);
  kernels::round_to(wire_, Rows(copy, operand.rows, operand.cols));
  return {copy, operand.rows, operand.cols};
}

void ChunkRun::multiply_part(std::span<const std::int16_t> exponents, kernels::PartialSums sums) {
  const Operation& op = *program_.gradient_product();
  const Columns part = program_.vocabulary();
  const ConstRows a = rounded(view(op.in[0]).columns(part.begin, part.end)), stored = parameters_(op.in[1].tensor);
  const ConstMatrix whole(stored.data, stored.ld);
  const ConstMatrix b = (op.trans_b ? whole.transposed() : whole).from(part.begin, 0);
  enough(row_exponents_, rows_);
  std::fill_n(row_exponents_.begin(), rows_, kernels::exponent_of_bound(op.row_bound));
  if (kernels::multiply_box(parallel_, {rows_, op.gemm.n, part.count()}, ConstMatrix(a.data, a.ld), b, row_exponents_,
                            exponents, sums) != kernels::ProductStatus::ok)
    throw CheckFailure(fmt::format("a product of {} is not finite: the training has diverged", op.name));
}

// C[rows, run] = A B[.., run] for each run of wanted columns.
void ChunkRun::multiply(const Instruction& instruction) {
  const Operation& op = *instruction.op;
  const std::int64_t k = op.gemm.k;
  ConstRows a = view(op.in[0]);
  const bool summed = k_blocks(k) > 1;
  if (summed) {
    enough(row_exponents_, rows_);
    if (op.row_bound > 0) {
      std::fill_n(row_exponents_.begin(), rows_, kernels::exponent_of_bound(op.row_bound));
    } else if (kernels::norm_exponents(parallel_, ConstMatrix(a.data, a.ld), rows_, k, row_exponents_) !=
               kernels::ProductStatus::ok) {
      throw CheckFailure(fmt::format("an operand of {} is not finite", op.name));
    }
  }
  a = rounded(a);
  const ConstMatrix left(a.data, a.ld);
  const ConstRows stored = parameters_(op.in[1].tensor);
  const Rows c = rows_of(op.out[0].tensor);
  for (const Columns& run : instruction.columns[0].runs()) {
    const ConstMatrix whole(stored.data, stored.ld);
    const ConstMatrix b = (op.trans_b ? whole.transposed() : whole).from(0, run.begin - op.out[0].col0);
    const std::span<const std::int16_t> columns = summed ? exponents_of(op, b, run) : std::span<const std::int16_t>();
    const Rows out = c.columns(run.begin, run.end);
    if (packs_ != nullptr && run.count() == op.gemm.n) {
      kernels::PackedOperand& packed = packed_[op.id];
      if (packed.empty()) packed = kernels::PackedOperand(parallel_, b, k, run.count(), *packs_);
      if (kernels::multiply_whole(parallel_, rows_, left, packed, row_exponents_, columns, partial_sum_type(wire_),
                                  {out.data, out.ld}) != kernels::ProductStatus::ok)
        throw CheckFailure(fmt::format("a product of {} is not finite: the training has diverged", op.name));
      kernels::round_to(wire_, out);
      continue;
    }
    if (kernels::multiply_whole(parallel_, {rows_, run.count(), k}, left, b, row_exponents_, columns,
                                partial_sum_type(wire_), {out.data, out.ld}) != kernels::ProductStatus::ok)
      throw CheckFailure(fmt::format("a product of {} is not finite: the training has diverged", op.name));
    kernels::round_to(wire_, out);
  }
}

// Calls body(key/value head) for the heads whose queries an instruction's first output has.
template <class Body>
void ChunkRun::for_heads(const Instruction& instruction, const Body& body) {
  const Operation& op = *instruction.op;
  const std::int64_t width = op.attention.queries_per_pair() * op.attention.head_dim;
  const ColumnSet wanted = instruction.columns[0].moved(-op.out[0].col0);
  for (const Columns& run : wanted.runs()) {
    parallel_.for_chunks(run.count() / width, 1,
                         [&](std::int64_t begin, std::int64_t) { body(run.begin / width + begin); });
  }
}

void ChunkRun::attend(const Instruction& instruction, SequenceState& state) {
  const Operation& op = *instruction.op;
  const AttentionShape& shape = op.attention;
  const std::int64_t queries = shape.queries_per_pair(), hd = shape.head_dim, sequence = shape.seq * hd;
  const kernels::PairShape pair{queries, shape.seq, hd};
  const Rows q_rows = view(op.in[0]), o_rows = view(op.out[0]);  // of a map, which threads must not change
  if (state.kept < t0_ + rows_) keep_keys_values(state);
  for_heads(instruction, [&](std::int64_t key) {
    thread_local KeptVector<float> memory;
    const std::int64_t rows = queries * rows_ * hd;
    float* const q = enough(memory, 2 * rows + floats(kernels::attention_forward_scratch(pair)));
    float* const o = q + rows;
    gather_heads(q_rows, key * queries, queries, hd, wire_, q);
    kernels::attention_forward_chunk(pair, t0_, rows_, q, state.keys.data() + key * sequence,
                                     state.values.data() + key * sequence, o,
                                     {o + rows, static_cast<std::size_t>(std::ssize(memory) - 2 * rows)});
    scatter_heads(o, key * queries, queries, hd, wire_, o_rows);
  });
}

void ChunkRun::attend_backward(const Instruction& instruction, SequenceState& state) {
  const Operation& op = *instruction.op;
  const AttentionShape& shape = op.attention;
  const std::int64_t queries = shape.queries_per_pair(), hd = shape.head_dim, sequence = shape.seq * hd;
  const kernels::PairShape pair{queries, shape.seq, hd};
  const Rows q_rows = view(op.in[0]), do_rows = view(op.in[3]), dq_rows = view(op.out[0]), dk_rows = view(op.out[1]),
             dv_rows = view(op.out[2]);
  for_heads(instruction, [&](std::int64_t key) {
    thread_local KeptVector<float> memory;
    const std::int64_t rows = queries * rows_ * hd, at = key * sequence;
    float* const q = enough(memory, 3 * rows + floats(kernels::attention_backward_scratch(pair)));
    float *const d_o = q + rows, *const dq = d_o + rows;
    gather_heads(q_rows, key * queries, queries, hd, wire_, q);
    gather_heads(do_rows, key * queries, queries, hd, wire_, d_o);
    float *const dk = state.key_gradients.data() + at, *const dv = state.value_gradients.data() + at;
    kernels::attention_backward_chunk(pair, t0_, rows_, q, state.keys.data() + at, state.values.data() + at, d_o, dq,
                                      dk, dv, {dq + rows, static_cast<std::size_t>(std::ssize(memory) - 3 * rows)});
    scatter_heads(dq, key * queries, queries, hd, wire_, dq_rows);
    scatter_heads(dk + t0_ * hd, key, 1, hd, wire_, dk_rows);
    scatter_heads(dv + t0_ * hd, key, 1, hd, wire_, dv_rows);
  });
}

void ChunkRun::keep_keys_values(SequenceState& state) {
  const Operation& op = *program_.attention();
  const AttentionShape& shape = op.attention;
  for (std::int64_t key = 0; key < shape.n_kv_head; ++key) {
    const std::int64_t at = (key * shape.seq + t0_) * shape.head_dim;
    gather_heads(view(op.in[1]), key, 1, shape.head_dim, wire_, state.keys.data() + at);
    gather_heads(view(op.in[2]), key, 1, shape.head_dim, wire_, state.values.data() + at);
  }
  state.kept = t0_ + rows_;
}

void ChunkRun::run(const Instruction& instruction, SequenceState& state, std::span<const std::int32_t> targets) {
  const Operation& op = *instruction.op;
  // The wanted run of columns of an output, and the same columns of another view.
  const auto for_runs = [&](auto body) {
    for (const Columns& run : instruction.columns[0].runs())
      body([&, run](const TensorView& of) {
        const std::int64_t begin = run.begin - op.out[0].col0, end = run.end - op.out[0].col0;
        return view(of).columns(begin, end);
      });
  };
  switch (op.kind) {
    case OpKind::gemm: multiply(instruction); break;
    case OpKind::attention_forward: attend(instruction, state); break;
    case OpKind::attention_backward: attend_backward(instruction, state); break;
    case OpKind::layer_norm:
      kernels::layer_norm(parallel_, view(op.in[0]), vector(op.in[1]), vector(op.in[2]), op.scalar, view(op.out[0]),
                          view(op.out[1]).data, view(op.out[2]).data);
      break;
    case OpKind::rms_norm:
      kernels::rms_norm(parallel_, view(op.in[0]), vector(op.in[1]), op.scalar, view(op.out[0]), view(op.out[1]).data);
      break;
    case OpKind::layer_norm_backward:
    case OpKind::rms_norm_backward: norm_backward(op, state); break;
    case OpKind::add_bias:
      for (const Columns& run : instruction.columns[0].runs())
        kernels::add_bias(parallel_, rows_of(op.out[0].tensor).columns(run.begin, run.end),
                          vector(op.in[0]) + run.begin - op.out[0].col0);
      break;
    case OpKind::gelu: for_runs([&](auto of) { kernels::gelu_new(parallel_, of(op.in[0]), of(op.out[0])); }); break;
    case OpKind::gelu_backward:
      for_runs([&](auto of) { kernels::gelu_new_backward(parallel_, of(op.in[1]), of(op.in[0]), of(op.out[0])); });
      break;
    case OpKind::relu: for_runs([&](auto of) { kernels::relu(parallel_, of(op.in[0]), of(op.out[0])); }); break;
    case OpKind::relu_backward:
      for_runs([&](auto of) { kernels::relu_backward(parallel_, of(op.in[1]), of(op.in[0]), of(op.out[0])); });
      break;
    case OpKind::swiglu:
      for_runs([&](auto of) { kernels::swiglu(parallel_, of(op.in[0]), of(op.in[1]), of(op.out[0])); });
      break;
    case OpKind::swiglu_backward:
      for_runs([&](auto of) {
        kernels::swiglu_backward(parallel_, of(op.in[1]), of(op.in[2]), of(op.in[0]), of(op.out[0]), of(op.out[1]));
      });
      break;
    case OpKind::rope:
    case OpKind::rope_backward: {
      auto& table = rope_;
      if (!table) table.emplace(op.attention.seq, op.integer, op.scalar);
      const auto direction = op.kind == OpKind::rope ? kernels::Rotate::forward : kernels::Rotate::backward;
      for (const Columns& run : instruction.columns[0].runs())
        kernels::rope(parallel_, *table, direction, rows_of(op.out[0].tensor).columns(run.begin, run.end), t0_);
      break;
    }
    case OpKind::add:
      for_runs([&](auto of) { kernels::add(parallel_, of(op.in[0]), of(op.in[1]), of(op.out[0])); });
      break;
    case OpKind::accumulate:
      for_runs([&](auto of) { kernels::accumulate(parallel_, of(op.in[0]), of(op.out[0])); });
      break;
    case OpKind::cross_entropy:
    case OpKind::cross_entropy_loss: lose(instruction, targets); break;
    default: CLEAVE_ASSERT(false, "{} is no operation of a piece", op.name);
  }
  if (!op.rounded) return;
  for (const Columns& run : instruction.columns[0].runs())
    kernels::round_to(program_.graph().boundary, rows_of(op.out[0].tensor).columns(run.begin, run.end));
}

}  // namespace cleave::pieces
