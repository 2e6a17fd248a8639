// GEMM boxes and attention pairs, from wire types to fp32 and back.
#include "execute.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <span>

#include "cleave/base/resident.hpp"
#include "cleave/kernels/attention.hpp"
#include "cleave/kernels/copy.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/product_check.hpp"
#include "cleave/kernels/token_sum_matrix.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "wire_buffers.hpp"

namespace cleave::device {

namespace {

using comm::Header;
using comm::Reason;
using comm::ResultDraft;
using comm::TaskView;
using comm::Work;

// Matrix number `place` of those that are read where the server keeps them.
const float* matrix_at(const TaskView& task, std::size_t place) {
  return reinterpret_cast<const float*>(task.reach.data() + task.places[place].offset);
}

// Operand `index` of a product, rows x cols, which arrived with the task or is read where the server keeps it.
kernels::ConstMatrix product_operand(const TaskView& task, std::size_t index, std::int64_t rows, std::int64_t cols,
                                     bool by_columns, std::vector<float>& buffer) {
  kernels::ConstMatrix stored;
  if (task.header.in_place) {
    stored = {matrix_at(task, index), task.places[index].ld};
  } else {
    stored = {widened(task.header.wire, task.operands[index], buffer), by_columns ? rows : cols};
  }
  return by_columns ? stored.transposed() : stored;
}

// What a thread computes pairs in. Kept: they are as large in every step, and fresh memory would be zeroed first.
struct PairMemory {
  std::vector<float> scratch;
  std::array<std::vector<float>, 4> in;
  std::array<std::vector<float>, 3> out;
};

// Operand `index` of pair `pair`: one head after another, each rows x cols. What the server keeps lies in rows far
// apart: copied together it stays in the cache while the pair is computed.
const float* pair_operand(const TaskView& task, std::size_t index, std::int64_t pair, std::vector<float>& buffer) {
  const comm::AttentionBlock& block = task.header.attention;
  const bool of_queries = index == 0 || index == 3;
  const std::int64_t heads = of_queries ? block.queries : 1, head = block.seq * block.head_dim;
  if (!task.header.in_place) {
    const std::int64_t bytes = heads * head * size_of(task.header.wire);
    return widened(
        task.header.wire,
        task.operands[index].subspan(static_cast<std::size_t>(pair * bytes), static_cast<std::size_t>(bytes)), buffer);
  }
  const std::array<std::int64_t, 4> before{0, block.pairs * block.queries, block.pairs * (block.queries + 1),
                                           block.pairs * (block.queries + 2)};
  buffer.resize(static_cast<std::size_t>(heads * head));
  for (std::int64_t h = 0; h < heads; ++h) {
    const auto place = static_cast<std::size_t>(before[index] + pair * heads + h);
    const kernels::ConstRows from(matrix_at(task, place), block.seq, block.head_dim, task.places[place].ld);
    kernels::copy_rows(from, buffer.data() + h * head);
  }
  return buffer.data();
}

Reason execute_gemm(const TaskView& task, ResultDraft& result, kernels::Parallel& parallel, Scratch& scratch) {
  const Header& header = task.header;
  const comm::GemmBlock& block = header.gemm;
  const GemmShape shape{header.rows(), block.n, block.k};
  const auto a = product_operand(task, 0, shape.m, block.k, header.a_by_columns, scratch.a);
  const auto b = product_operand(task, 1, block.k, block.n, header.b_by_columns, scratch.b);

  const kernels::SumRule rule{task.row_exponents, task.column_exponents, tokens_of(header)};
  if (!block.whole_depth() && kernels::TokenSumMatrix::sums(rule)) {
    kernels::TokenSumMatrix sums(shape.m, shape.n, rule.tokens.unit);
    if (sums.add_product(parallel, shape.k, a, b, rule.tokens) != kernels::ProductStatus::ok) return Reason::non_finite;
    if (!make_room(result, sums.partial_type(sums.whole()))) return Reason::memory;
    sums.partial_sums(parallel, sums.whole(), {result.header.output, result.outputs[0].data(), block.n});
    return Reason::none;
  }
  if (!block.whole_depth()) {
    const kernels::PartialSums sums{header.output, result.outputs[0].data(), block.n};
    const auto status = kernels::multiply_run(parallel, shape, a, b, rule, sums, kernels::Accumulate::no);
    return status == kernels::ProductStatus::ok ? Reason::none : Reason::non_finite;
  }
  float* c = target(header.output, result.outputs[0], scratch.c);
  const auto status =
      kernels::multiply_depth(parallel, shape, a, b, rule, partial_sum_type(header.wire), kernels::Matrix(c, block.n));
  if (status != kernels::ProductStatus::ok) return Reason::non_finite;
  narrow_into(header.output, c, result.outputs[0]);
  return Reason::none;
}

// Pairs one after another, each in buffers of its own, as the kernels have it.
Reason execute_attention(const TaskView& task, ResultDraft& result, kernels::Parallel& parallel) {
  const Header& header = task.header;
  const comm::AttentionBlock& block = header.attention;
  const bool backward = header.work == Work::attention_backward;
  const kernels::PairShape shape{block.queries, block.seq, block.head_dim};
  const Bytes scratch_bytes =
      backward ? kernels::attention_backward_scratch(shape) : kernels::attention_forward_scratch(shape);
  const std::size_t scratch_size = static_cast<std::size_t>(scratch_bytes.value()) / sizeof(float) + 1;
  const std::int64_t element = size_of(header.wire);
  const std::int64_t key = block.seq * block.head_dim, query = key * block.queries;
  std::atomic<bool> finite{true};

  parallel.for_chunks(header.pairs(), 1, [&](std::int64_t begin, std::int64_t end) {
    thread_local PairMemory memory;
    if (memory.scratch.size() < scratch_size) memory.scratch.resize(scratch_size);
    for (std::int64_t pair = begin; pair < end; ++pair) {
      const auto slice = [&](auto bytes, std::int64_t elements) {
        return bytes.subspan(static_cast<std::size_t>(pair * elements * element),
                             static_cast<std::size_t>(elements * element));
      };
      std::array<const float*, 4> in{};
      for (std::size_t i = 0; i < (backward ? 4U : 3U); ++i) { in[i] = pair_operand(task, i, pair, memory.in[i]); }
      std::array<float*, 3> out{};
      const std::size_t outputs = backward ? 3 : 1;
      for (std::size_t i = 0; i < outputs; ++i) {
        out[i] = target(header.wire, slice(result.outputs[i], i == 0 ? query : key), memory.out[i]);
      }
      if (backward) {
        kernels::attention_backward(shape, in[0], in[1], in[2], in[3], out[0], out[1], out[2], memory.scratch);
      } else {
        kernels::attention_forward(shape, in[0], in[1], in[2], out[0], memory.scratch);
      }
      for (std::size_t i = 0; i < outputs; ++i) {
        const std::int64_t elements = i == 0 ? query : key;
        if (!kernels::all_representable(DType::f32, out[i], elements)) finite = false;
        narrow_into(header.wire, out[i], slice(result.outputs[i], elements));
      }
    }
  });
  return finite ? Reason::none : Reason::non_finite;
}

}  // namespace

kernels::TokenRun tokens_of(const Header& task) {
  return {task.gemm.seq, task.gemm.first_block * kBlockK, {task.wire, static_cast<int>(task.gemm.loss_bits)}};
}

bool make_room(ResultDraft& draft, DType type) {
  if (type == draft.header.output) return true;
  Header wide = draft.header;
  wide.output = type;
  if (comm::frame_bytes(wide) < 0) return false;
  draft = comm::begin_result(wide);
  return true;
}

Bytes resident_bytes(const Header& task) {
  if (task.work == Work::gemm) {
    const comm::GemmBlock& block = task.gemm;
    if (task.columns == comm::Columns::bring) {
      return kept_columns_bytes(block.n, block.k, task.wire, block.blocks > 1);
    }
    if (task.columns == comm::Columns::kept) {
      return gemm_resident_bytes_beside_columns({block.m, block.n, block.k}, task.wire, block.blocks > 1,
                                                block.whole_depth(), task.panels);
    }
    if (task.part.of == comm::PartOf::k_blocks) {
      return gemm_streamed_bytes({block.m, block.n, block.k}, task.wire, block.blocks > 1, block.whole_depth(),
                                 2 * task.part.count * kBlockK);
    }
    return gemm_resident_bytes({block.m, block.n, block.k}, task.wire, block.blocks > 1, block.whole_depth(),
                               static_cast<PanelOrder>(task.panel_order), task.panels);
  }
  const comm::AttentionBlock& block = task.attention;
  return attention_resident_bytes(block.pairs, block.queries, block.seq, block.head_dim, task.wire,
                                  task.work == Work::attention_backward, task.panels);
}

std::variant<ResultDraft, Reason> execute(const TaskView& task, kernels::Parallel& parallel, Scratch& scratch) {
  Header whole = task.header;
  whole.digest = false;  // of a block that is made all the same
  ResultDraft result = comm::begin_result(comm::result_header(whole));
  const Reason reason = task.header.work == Work::gemm ? execute_gemm(task, result, parallel, scratch)
                                                       : execute_attention(task, result, parallel);
  if (reason != Reason::none) return reason;
  return result;
}

}  // namespace cleave::device
