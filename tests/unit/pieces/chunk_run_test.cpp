// Pieces of a model, sequence by sequence and chunk by chunk: the same bits however a sequence is cut, whatever slice
// of a gradient is wanted, and the bits of a step in tiles.
#include "cleave/pieces/chunk_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cleave/base/random.hpp"
#include "cleave/kernels/token_sum_matrix.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "cleave/kernels/wire.hpp"
#include "cleave/model/pieces.hpp"
#include "whole_step.hpp"

namespace cleave::pieces {
namespace {

using model::Operation;
using model::OpKind;

struct ChunkCase : SmallModel {
  DType wire;
  std::optional<DType> boundary{};
};

std::ostream& operator<<(std::ostream& out, const ChunkCase& c) {
  return out << c.family << " " << c.heads << "/" << c.keys << " heads, " << c.width << " wide, " << c.hidden
             << " hidden, " << c.seq << " tokens, " << name_of(c.wire) << (c.boundary ? " and mxint8" : "")
             << (c.tied ? "" : ", untied");
}

class ChunkRunTest : public ::testing::TestWithParam<ChunkCase> {
 protected:
  ChunkRunTest()
      : graph_(graph_of(GetParam(), 1, GetParam().wire, GetParam().boundary)),
        parameters_(graph_, 11),
        pieces_(model::pieces_of(graph_)),
        batch_(GetParam().seq) {
    parameters_.ensure_moments(graph_);
    for (const model::TensorSpec& spec : graph_.tensors) {
      if (spec.role != model::TensorRole::parameter) continue;
      const server::Parameter& parameter = parameters_.at(spec.name);
      const std::span<const float> value(parameter.value.data(), parameter.value.size());
      exact_[spec.id].assign(value.begin(), value.end());
      rounded_[spec.id] = exact_[spec.id];
      if (!spec.vector) kernels::round_to(GetParam().wire, {rounded_[spec.id].data(), spec.rows, spec.cols});
    }
  }

  const std::string& name(TensorId parameter) const { return graph_.tensor(parameter).name; }
  Parameters weights() const {
    return [this](TensorId id) {
      const model::TensorSpec& spec = graph_.tensor(id);
      return kernels::ConstRows(rounded_.at(id).data(), spec.rows, spec.cols);
    };
  }

  // Rows of whole tensors, by name, as they came.
  struct Kept {
    std::map<TensorId, Floats> values;
    void keep(const model::StepGraph& graph, TensorId id, std::int64_t t0, kernels::ConstRows rows) {
      const std::int64_t cols = graph.tensor(id).cols;
      Floats& whole = values[id];
      whole.resize(static_cast<std::size_t>(graph.seq * cols));
      for (std::int64_t i = 0; i < rows.rows; ++i) std::copy_n(rows.row(i), cols, whole.data() + (t0 + i) * cols);
    }
    kernels::Rows rows(const model::StepGraph& graph, TensorId id) {
      return {values.at(id).data(), graph.seq, graph.tensor(id).cols};
    }
  };

  std::vector<std::int64_t> begins(std::int64_t chunk) const {
    std::vector<std::int64_t> all;
    for (std::int64_t t0 = 0; t0 < graph_.seq; t0 += chunk) all.push_back(t0);
    return all;
  }
  static void put(kernels::ConstRows from, std::int64_t t0, kernels::Rows to) {
    for (std::int64_t i = 0; i < to.rows; ++i) std::copy_n(from.row(t0 + i), to.cols, to.row(i));
  }

  // In pieces, each in chunks of so many tokens.
  Gradients by_pieces(std::int64_t chunk) {
    Gradients gradients;
    const std::int64_t seq = graph_.seq, end = std::ssize(pieces_);
    Kept kept;
    const TensorId lowest = operation_of(graph_, OpKind::embed).out[0].tensor;
    kept.values[lowest].resize(static_cast<std::size_t>(seq * graph_.tensor(lowest).cols));
    embed(graph_, parameters_, batch_, kept.rows(graph_, lowest));
    for (std::int64_t piece = 0; piece < end; ++piece) {
      const Program program(graph_, piece);
      ChunkRun run(program, GetParam().wire, parallel_, memory_, weights());
      SequenceState state = run.open_forward();
      const std::vector<Instruction> forward = program.forward(program.outputs());
      if (program.has_logits()) continue;
      for (const std::int64_t t0 : begins(chunk)) {
        run.begin(t0, std::min(chunk, seq - t0));
        put(kept.rows(graph_, program.x()), t0, run.rows_of(program.x()));
        run.run(forward, state);
        kept.keep(graph_, program.y(), t0, run.rows_of(program.y()));
      }
    }
    piece_loss_ = 0;
    for (std::int64_t piece = end; piece-- > 0;) back(piece, chunk, kept, gradients);
    embed_backward(graph_, batch_, kept.rows(graph_, operation_of(graph_, OpKind::embed_backward).in[1].tensor),
                   gradients);
    return gradients;
  }

  void back(std::int64_t piece, std::int64_t chunk, Kept& kept, Gradients& gradients) {
    const Program program(graph_, piece);
    ChunkRun run(program, GetParam().wire, parallel_, memory_, weights());
    SequenceState state = run.open_backward();
    const std::int64_t seq = graph_.seq;
    if (program.attention() != nullptr) {
      const std::vector<Instruction> recompute = program.forward(program.keys_values());
      for (const std::int64_t t0 : begins(chunk)) {
        run.begin(t0, std::min(chunk, seq - t0));
        put(kept.rows(graph_, program.x()), t0, run.rows_of(program.x()));
        run.run(recompute, state);
        run.keep_keys_values(state);
      }
    }
    Wanted wanted = program.input_gradient();
    std::set<TensorId> operands;
    for (const Operation* sum : program.sums()) {
      for (const model::TensorView& in : sum->in) {
        wanted[in.tensor].add(Columns{in.col0, in.col0 + in.cols});
        operands.insert(in.tensor);
      }
    }
    const std::vector<Instruction> back = program.back(wanted);
    std::vector<std::int64_t> order = begins(chunk);
    std::ranges::reverse(order);
    for (const std::int64_t t0 : order) {
      run.begin(t0, std::min(chunk, seq - t0));
      put(kept.rows(graph_, program.x()), t0, run.rows_of(program.x()));
      if (program.dy().valid()) put(kept.rows(graph_, program.dy()), t0, run.rows_of(program.dy()));
      run.run(back, state, std::span(batch_.targets).subspan(t0, std::min(chunk, seq - t0)));
      if (program.has_logits()) piece_loss_ += run.loss();
      if (program.dx().valid()) kept.keep(graph_, program.dx(), t0, run.rows_of(program.dx()));
      for (const TensorId operand : operands) kept.keep(graph_, operand, t0, run.rows_of(operand));
    }
    for (const Operation* sum : program.sums()) add_up(*sum, kept, gradients);
    norms(*program.norm_backward(), state, gradients);
  }

  kernels::Rows rounded_view(Kept& kept, const model::TensorView& view) {
    const kernels::Rows rows = kept.rows(graph_, view.tensor).columns(view.col0, view.col0 + view.cols);
    return rows;
  }

  void add_up(const Operation& op, Kept& kept, Gradients& gradients) {
    Floats& gradient = gradients[name(graph_.tensor(op.out[0].tensor).parameter)];
    gradient.resize(static_cast<std::size_t>(op.out[0].rows * op.out[0].cols));
    Floats copies[2];
    const auto operand = [&](std::size_t i) {
      const kernels::ConstRows rows = rounded_view(kept, op.in[i]);
      copies[i].resize(static_cast<std::size_t>(rows.rows * rows.cols));
      for (std::int64_t r = 0; r < rows.rows; ++r) std::copy_n(rows.row(r), rows.cols, &copies[i][r * rows.cols]);
      kernels::round_to(GetParam().wire, {copies[i].data(), rows.rows, rows.cols});
      return kernels::ConstRows(copies[i].data(), rows.rows, rows.cols);
    };
    const kernels::TokenUnit unit{GetParam().wire, graph_.loss_bits};
    const kernels::ConstRows a = operand(0);
    const bool bias = op.kind == OpKind::bias_gradient;
    kernels::TokenSumMatrix sums(bias ? 1 : op.gemm.m, bias ? a.cols : op.gemm.n, unit);
    if (bias) {
      EXPECT_EQ(sums.add_columns(parallel_, a, graph_.seq), kernels::ProductStatus::ok);
    } else {
      const kernels::ConstRows b = operand(1);
      EXPECT_EQ(sums.add_product(parallel_, op.gemm.k, kernels::ConstMatrix(a.data, a.ld).transposed(),
                                 kernels::ConstMatrix(b.data, b.ld), {graph_.seq, 0, unit}),
                kernels::ProductStatus::ok);
    }
    EXPECT_EQ(sums.finish(parallel_, sums.whole(), {gradient.data(), sums.cols()}), kernels::ProductStatus::ok);
    kernels::round_gradient(parallel_, unit, {gradient.data(), sums.rows(), sums.cols()});
  }

  void norms(const Operation& op, const SequenceState& state, Gradients& gradients) {
    const auto cols = static_cast<std::size_t>(op.in[0].cols);
    Floats all(state.norm_sums.size());
    kernels::finish_token_sums(state.norm_sums, all);
    for (std::size_t i = 0; (i + 1) * cols <= all.size(); ++i) {
      gradients[name(graph_.tensor(op.out[1 + i].tensor).parameter)] =
          Floats(all.begin() + static_cast<std::ptrdiff_t>(i * cols),
                 all.begin() + static_cast<std::ptrdiff_t>((i + 1) * cols));
    }
  }

  model::StepGraph graph_;
  server::ParameterStore parameters_;
  std::vector<model::Piece> pieces_;
  Tokens batch_;
  std::map<TensorId, Floats> exact_, rounded_;
  kernels::Parallel parallel_{2};
  BlockPool pool_;
  ChunkMemory memory_{pool_};
  double piece_loss_ = 0;
};

// What the planner charges for kept values is what is kept.
TEST_P(ChunkRunTest, KeepsWhatPiecesSay) {
  for (std::int64_t piece = 0; piece < std::ssize(pieces_); ++piece) {
    const Program program(graph_, piece);
    const model::Piece& said = pieces_[static_cast<std::size_t>(piece)];
    EXPECT_EQ(program.kept_columns(), said.kept_elements) << said.name();
    std::set<TensorId> kept(said.kept.begin(), said.kept.end());
    for (const auto& entry : program.kept()) EXPECT_EQ(kept.count(entry.first), 1U);
  }
}

TEST_P(ChunkRunTest, GivesTheGradientsOfTheOperations) {
  const Trained wanted = by_operations(graph_, parameters_, GetParam().wire, batch_);
  expect_same(by_pieces(graph_.seq), wanted.gradients);
  // Rows' losses are added in another order here, for which two sums of n positive numbers differ by n roundings at
  // most.
  const auto rows = static_cast<double>(graph_.seq);
  EXPECT_NEAR(piece_loss_ / rows, wanted.loss, rows * std::numeric_limits<double>::epsilon() * wanted.loss);
}

// In mxint8 elements share scales: who wants some columns of the residual stream gets those that all have.
TEST_P(ChunkRunTest, SomeColumnsHaveTheBitsOfAll) {
  for (std::int64_t piece = 0; piece < std::ssize(pieces_); ++piece) {
    const Program program(graph_, piece);
    if (program.has_logits()) continue;
    ChunkRun run(program, GetParam().wire, parallel_, memory_, weights());
    const std::int64_t cols = graph_.tensor(program.y()).cols, rows = std::min<std::int64_t>(graph_.seq, 128);
    const auto made = [&](const Columns& columns) {
      SequenceState state = run.open_forward();
      run.begin(0, rows);
      const kernels::Rows x = run.rows_of(program.x());
      const Random random(3, Purpose::test);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < cols; ++j)
          x.row(i)[j] = std::ldexp(static_cast<float>(random.uniform(static_cast<std::uint64_t>(i * cols + j)) - 0.5),
                                   static_cast<int>(j % 5));
      }
      kernels::round_to(graph_.boundary, x);
      Wanted wanted;
      wanted[program.y()].add(columns);
      run.run(program.forward(wanted), state);
      const kernels::ConstRows y = run.rows_of(program.y());
      Floats values;
      for (std::int64_t i = 0; i < rows; ++i)
        values.insert(values.end(), y.row(i) + columns.begin, y.row(i) + columns.end);
      return values;
    };
    const Floats whole = made({0, cols});
    for (const Columns some : {Columns{0, 1}, Columns{cols / 3, cols / 2}, Columns{cols - 2, cols}}) {
      const Floats part = made(some);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = some.begin; j < some.end; ++j) {
          ASSERT_EQ(part[static_cast<std::size_t>(i * some.count() + j - some.begin)],
                    whole[static_cast<std::size_t>(i * cols + j)])
              << "piece " << piece << ", row " << i << ", column " << j;
        }
      }
    }
  }
}

TEST_P(ChunkRunTest, TheSameBitsInChunksOfAnyLength) {
  const Gradients whole = by_pieces(graph_.seq);
  for (const std::int64_t chunk : {128, 256}) {
    if (chunk >= graph_.seq) continue;
    SCOPED_TRACE(chunk);
    expect_same(by_pieces(chunk), whole);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ChunkRunTest,
                         ::testing::Values(ChunkCase{{"gpt2", 4, 4, 32, 1600, 12}, DType::f32},
                                           ChunkCase{{"gpt2", 2, 2, 24, 100, 127, false}, DType::bf16},
                                           ChunkCase{{"opt", 4, 4, 32, 1600, 128}, DType::f16},
                                           ChunkCase{{"opt", 2, 2, 16, 64, 500}, DType::f32},
                                           ChunkCase{{"llama", 3, 3, 24, 100, 100, false}, DType::f32},
                                           ChunkCase{{"llama", 6, 2, 48, 90, 300}, DType::f32},
                                           ChunkCase{{"llama", 4, 1, 32, 1600, 385, false}, DType::bf16},
                                           ChunkCase{{"gpt2", 4, 4, 32, 128, 260}, DType::f16},
                                           ChunkCase{{"opt", 4, 4, 96, 100, 130}, DType::f16, DType::mxint8},
                                           ChunkCase{{"llama", 6, 2, 48, 90, 300}, DType::f32, DType::mxint8}));

}  // namespace
}  // namespace cleave::pieces
