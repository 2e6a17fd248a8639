// Pieces of a model, sequence by sequence and chunk by chunk: the same bits however a sequence is cut, whatever slice
// of a gradient is wanted, and the bits of a step in tiles.
#include "cleave/pieces/chunk_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cleave/kernels/embedding.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "cleave/kernels/wire.hpp"
#include "cleave/model/family.hpp"
#include "cleave/model/pieces.hpp"
#include "executor.hpp"

namespace cleave::pieces {
namespace {

using model::Operation;
using model::OpKind;
using Floats = std::vector<float>;
using Gradients = std::map<std::string, Floats>;

struct Case {
  std::string family;
  std::int64_t heads, keys, width, hidden, seq;
  DType wire;
  bool tied = true;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.family << " " << c.heads << "/" << c.keys << " heads, " << c.width << " wide, " << c.hidden
             << " hidden, " << c.seq << " tokens, " << name_of(c.wire) << (c.tied ? "" : ", untied");
}

class ChunkRunTest : public ::testing::TestWithParam<Case> {
 protected:
  ChunkRunTest() : graph_(make_graph()), parameters_(graph_, 11), pieces_(model::pieces_of(graph_)) {
    parameters_.ensure_moments(graph_);
    for (std::int64_t i = 0; i < GetParam().seq; ++i) {
      tokens_.push_back(static_cast<std::int32_t>((7 * i * i + 3 * i + 1) % kVocabulary));
      targets_.push_back(static_cast<std::int32_t>((5 * i + i / 7 + 1) % kVocabulary));
    }
    for (const model::TensorSpec& spec : graph_.tensors) {
      if (spec.role != model::TensorRole::parameter) continue;
      const server::Parameter& parameter = parameters_.at(spec.name);
      const std::span<const float> value(parameter.value.data(), parameter.value.size());
      exact_[spec.id].assign(value.begin(), value.end());
      rounded_[spec.id] = exact_[spec.id];
      if (!spec.vector) kernels::round_to(GetParam().wire, {rounded_[spec.id].data(), spec.rows, spec.cols});
    }
  }

  static constexpr std::int64_t kVocabulary = 90;

  static model::StepGraph make_graph() {
    const Case& c = GetParam();
    model::ModelConfig config;
    config.family = c.family;
    config.vocab_size = kVocabulary;
    config.n_layer = 2;
    config.n_head = c.heads;
    config.n_kv_head = c.keys;
    config.d_model = c.width;
    config.d_ff = c.hidden;
    config.seq_len = config.max_pos = c.seq;
    config.tie_embeddings = c.tied;
    return model::build_step(
        config,
        {.kind = model::StepKind::train, .batch = 1, .clip = false, .freeze = {}, .loss_rows = c.seq, .row_groups = 1});
  }

  const std::string& name(TensorId parameter) const { return graph_.tensor(parameter).name; }
  Parameters weights() const {
    return [this](TensorId id) {
      const model::TensorSpec& spec = graph_.tensor(id);
      return kernels::ConstRows(rounded_.at(id).data(), spec.rows, spec.cols);
    };
  }

  // In tiles, by the server alone.
  Gradients by_operations() {
    Gradients gradients;
    server::Executor executor(parameters_, GetParam().wire, {});
    server::StepInputs inputs{tokens_, targets_, {.lr = 1e-3, .k = 1}, {}};
    inputs.on_gradient = [&](std::string_view of, std::span<const float> gradient) {
      gradients[std::string(of)].assign(gradient.begin(), gradient.end());
    };
    executor.begin_step(graph_, inputs);
    for (const Operation& op : graph_.operations) {
      if (op.kind == OpKind::gemm || op.kind == OpKind::attention_forward || op.kind == OpKind::attention_backward) {
        sched::Tasklet tasklet;
        tasklet.op = op.id;
        tasklet.piece.device = kServerDevice;
        tasklet.piece.box = {0, op.gemm.m, 0, op.gemm.n, 0, op.gemm.k};
        tasklet.piece.pairs = {0, op.attention.pairs()};
        executor.compute(tasklet);
      } else {
        executor.run(op);
      }
      executor.finish(op.id);
      executor.retire(op.id);
    }
    loss_ = executor.loss();
    return gradients;
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
    embed(kept);
    for (std::int64_t piece = 0; piece < end; ++piece) {
      const Program program(graph_, piece);
      ChunkRun run(program, GetParam().wire, parallel_, weights());
      SequenceState state = run.open_forward();
      const std::vector<Instruction> forward = program.forward(program.outputs());
      if (program.is_head()) continue;
      for (const std::int64_t t0 : begins(chunk)) {
        run.begin(t0, std::min(chunk, seq - t0));
        put(kept.rows(graph_, program.x()), t0, run.rows_of(program.x()));
        run.run(forward, state);
        kept.keep(graph_, program.y(), t0, run.rows_of(program.y()));
      }
    }
    piece_loss_ = 0;
    for (std::int64_t piece = end; piece-- > 0;) back(piece, chunk, kept, gradients);
    embed_backward(kept, gradients);
    return gradients;
  }

  void embed(Kept& kept) {
    const Operation& op = *std::ranges::find(graph_.operations, OpKind::embed, &Operation::kind);
    const auto rows = [&](const model::TensorView& view) {
      return kernels::ConstRows(exact_.at(view.tensor).data(), view.rows, view.cols);
    };
    Floats& x = kept.values[op.out[0].tensor];
    x.resize(static_cast<std::size_t>(graph_.seq * op.out[0].cols));
    kernels::embed(parallel_, tokens_, graph_.seq, rows(op.in[1]),
                   op.in.size() > 2 ? rows(op.in[2]) : kernels::ConstRows(), op.integer,
                   kept.rows(graph_, op.out[0].tensor));
  }

  void embed_backward(Kept& kept, Gradients& gradients) {
    const Operation& op = *std::ranges::find(graph_.operations, OpKind::embed_backward, &Operation::kind);
    const auto rows = [&](std::size_t i) {
      Floats& gradient = gradients[name(graph_.tensor(op.out[i].tensor).parameter)];
      gradient.resize(static_cast<std::size_t>(op.out[i].rows * op.out[i].cols));
      return kernels::Rows(gradient.data(), op.out[i].rows, op.out[i].cols);
    };
    kernels::embed_backward(parallel_, tokens_, graph_.seq, kept.rows(graph_, op.in[1].tensor), rows(0),
                            op.out.size() > 1 ? rows(1) : kernels::Rows(), op.integer);
  }

  void back(std::int64_t piece, std::int64_t chunk, Kept& kept, Gradients& gradients) {
    const Program program(graph_, piece);
    ChunkRun run(program, GetParam().wire, parallel_, weights());
    SequenceState state = run.open_backward();
    const std::int64_t seq = graph_.seq;
    if (program.attention() != nullptr) {
      const std::vector<Instruction> remake = program.forward(program.keys_values());
      for (const std::int64_t t0 : begins(chunk)) {
        run.begin(t0, std::min(chunk, seq - t0));
        put(kept.rows(graph_, program.x()), t0, run.rows_of(program.x()));
        run.run(remake, state);
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
      run.run(back, state, std::span(targets_).subspan(t0, std::min(chunk, seq - t0)));
      if (program.is_head()) piece_loss_ += run.loss();
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
    if (op.kind == OpKind::bias_gradient) {
      EXPECT_EQ(kernels::column_sums(parallel_, rounded_view(kept, op.in[0]), graph_.seq, gradient),
                kernels::ProductStatus::ok);
      return;
    }
    Floats copies[2];
    kernels::ConstMatrix operand[2];
    for (std::size_t i = 0; i < 2; ++i) {
      const kernels::ConstRows rows = rounded_view(kept, op.in[i]);
      copies[i].resize(static_cast<std::size_t>(rows.rows * rows.cols));
      for (std::int64_t r = 0; r < rows.rows; ++r) std::copy_n(rows.row(r), rows.cols, &copies[i][r * rows.cols]);
      kernels::round_to(GetParam().wire, {copies[i].data(), rows.rows, rows.cols});
      operand[i] = {copies[i].data(), rows.cols};
    }
    const GemmShape shape = op.gemm;
    if (GetParam().wire == DType::f32) {
      EXPECT_EQ(kernels::multiply_all_tokens(parallel_, shape, operand[0].transposed(), operand[1], graph_.seq,
                                             {gradient.data(), shape.n}),
                kernels::ProductStatus::ok);
      return;
    }
    std::vector<std::int16_t> e(static_cast<std::size_t>(shape.m)), f(static_cast<std::size_t>(shape.n));
    EXPECT_EQ(kernels::norm_exponents(parallel_, operand[0].transposed(), shape.m, shape.k, e),
              kernels::ProductStatus::ok);
    EXPECT_EQ(kernels::norm_exponents(parallel_, operand[1].transposed(), shape.n, shape.k, f),
              kernels::ProductStatus::ok);
    EXPECT_EQ(kernels::multiply_whole(parallel_, shape, operand[0].transposed(), operand[1], e, f,
                                      partial_sum_type(GetParam().wire), {gradient.data(), shape.n}),
              kernels::ProductStatus::ok);
    kernels::round_to(GetParam().wire, {gradient.data(), shape.m, shape.n});
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

  static void expect_same(const Gradients& got, const Gradients& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (const auto& [of, gradient] : wanted) {
      const auto found = got.find(of);
      ASSERT_NE(found, got.end()) << of;
      ASSERT_EQ(found->second.size(), gradient.size()) << of;
      EXPECT_EQ(std::memcmp(found->second.data(), gradient.data(), gradient.size() * sizeof(float)), 0) << of;
    }
  }

  model::StepGraph graph_;
  server::ParameterStore parameters_;
  std::vector<model::Piece> pieces_;
  std::vector<std::int32_t> tokens_, targets_;
  std::map<TensorId, Floats> exact_, rounded_;
  kernels::Parallel parallel_{2};
  double loss_ = 0, piece_loss_ = 0;
};

TEST_P(ChunkRunTest, GivesTheGradientsOfTheOperations) {
  const Gradients wanted = by_operations();
  expect_same(by_pieces(graph_.seq), wanted);
  EXPECT_DOUBLE_EQ(piece_loss_ / static_cast<double>(graph_.seq), loss_);
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
                         ::testing::Values(Case{"gpt2", 4, 4, 32, 1600, 12, DType::f32},
                                           Case{"gpt2", 2, 2, 24, 100, 127, DType::bf16, false},
                                           Case{"opt", 4, 4, 32, 1600, 128, DType::f16},
                                           Case{"opt", 2, 2, 16, 64, 500, DType::f32},
                                           Case{"llama", 3, 3, 24, 100, 100, DType::f32, false},
                                           Case{"llama", 6, 2, 48, 90, 300, DType::f32},
                                           Case{"llama", 4, 1, 32, 800, 385, DType::bf16, false},
                                           Case{"gpt2", 4, 4, 32, 128, 260, DType::f16}));

}  // namespace
}  // namespace cleave::pieces
