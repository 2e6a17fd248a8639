// Steps in stages, with numbers: the same bits for any cut into stages, chunks, replicas and owners, and whatever the
// order of the sequences; the gradients of a step in tiles, as far as the order of its additions allows.
#include "cleave/pieces/stage_worker.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "cleave/base/sanitizer.hpp"
#include "cleave/kernels/token_sum_matrix.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "cleave/kernels/wire.hpp"
#include "support/cases.hpp"
#include "whole_step.hpp"

namespace cleave::pieces {
namespace {

using testing_support::all_or_few;

using model::Operation;
using Status = StageWorker::Status;

constexpr std::int64_t kBatch = 3;

struct StageCase : SmallModel {
  DType wire = DType::f32;
  float size = 1;  ///< of weights, times their usual one: gradients of larger ones need more than 32 bits
  std::optional<DType> boundary{};
};

std::ostream& operator<<(std::ostream& out, const StageCase& c) {
  return out << c.family << " " << c.heads << "/" << c.keys << " heads, " << c.width << " wide, " << c.hidden
             << " hidden, " << c.seq << " tokens, " << name_of(c.wire) << (c.boundary ? " and mxint8" : "")
             << (c.tied ? "" : ", untied");
}

/// How a step is laid out. Of a stage's gradient each owner has the units between two of its marks, as shares.
struct Layout {
  std::vector<std::int64_t> stages;  ///< pieces of each, without the head
  std::int64_t chunk = 128;
  int replicas = 1;
  bool owners_are_replicas = true;
  std::vector<double> marks{0, 1};
  std::vector<std::int64_t> order{0, 1, 2};  ///< of sequences
  bool split_sequences = false;              ///< each slice has two owners, who take sequences in turn
  bool keeps = false;                        ///< values of the forward pass are kept for the backward pass
  bool in_place = false;                     ///< weights are read where they lie
  bool late = false;                         ///< sums wait until they are asked for, whole
  bool settled = false;                      ///< and are made before that
};

class StageWorkerTest : public ::testing::TestWithParam<StageCase> {
 protected:
  StageWorkerTest()
      : graph_(graph_of(GetParam(), kBatch, GetParam().wire, GetParam().boundary)),
        parameters_(graph_, 11),
        table_(graph_),
        batch_(kBatch * GetParam().seq) {
    parameters_.ensure_moments(graph_);
    for (const model::TensorSpec& spec : graph_.tensors) {
      if (spec.role != model::TensorRole::parameter || spec.vector) continue;
      for (float& value : parameters_.at(spec.name).value) value *= GetParam().size;
    }
  }

  const std::string& name(TensorId parameter) const { return graph_.tensor(parameter).name; }
  std::vector<std::byte> gather(const NeededParameters& needed) {
    std::vector<std::byte> bytes;
    for (const auto& [id, part] : needed) {
      const kernels::ConstRows all = rows_of_parameter(graph_, parameters_, id);
      const DType type = sent_as(graph_, id);
      for_needed(graph_.tensor(id), part, [&](std::int64_t first, std::int64_t count) {
        const std::size_t before = bytes.size();
        bytes.resize(before + static_cast<std::size_t>(count * size_of(type)));
        kernels::to_wire(type, {all.data + first, 1, count}, bytes.data() + before);
      });
    }
    EXPECT_EQ(std::ssize(bytes), bytes_of(graph_, needed));
    return bytes;
  }

  struct Stage {
    std::int64_t first, end;
    std::deque<StageWorker> replicas;
    struct Owner {
      StageWorker* worker;
      std::int32_t number;
      std::vector<UnitRange> slices;
      int turn = -1;  // of the sequences that it takes; -1: all
    };
    std::deque<StageWorker> apart;
    std::vector<Owner> owners;
    Stage(std::int64_t from, std::int64_t to) : first(from), end(to) {}
  };

  std::vector<UnitRange> units(const Stage& stage, double from, double to) {
    std::vector<UnitRange> slices;
    const auto pieces = static_cast<double>(stage.end - stage.first);
    for (std::int64_t piece = stage.first; piece < stage.end; ++piece) {
      const auto all = static_cast<double>(table_.piece(piece).units);
      const auto at = [&](double share) {
        const double place = share * pieces - static_cast<double>(piece - stage.first);
        return static_cast<std::int64_t>(std::llround(std::clamp(place, 0.0, 1.0) * all));
      };
      if (at(to) > at(from)) slices.push_back({piece, at(from), at(to)});
    }
    return slices;
  }

  void hold(Stage& stage, std::int32_t number, const Layout& layout) {
    for (int r = 0; r < layout.replicas; ++r) {
      StageWorker& worker = stage.replicas.emplace_back(table_, parallel_);
      const auto replay = layout.keeps ? StageWorker::Replay::kept : StageWorker::Replay::recomputed;
      const Parameters places = [this](TensorId id) { return rows_of_parameter(graph_, parameters_, id); };
      const Status held = layout.in_place && graph_.wire == DType::f32
                              ? worker.hold_stage(number, stage.first, stage.end, places, replay)
                              : worker.hold_stage(number, stage.first, stage.end,
                                                  gather(parameters_of_stage(table_, stage.first, stage.end)), replay);
      ASSERT_EQ(held, Status::ok);
      if (layout.late) worker.sum_late();
    }
    std::int32_t owner = 0;
    for (std::size_t k = 0; k + 1 < layout.marks.size(); ++k) {
      const std::vector<UnitRange> slices = units(stage, layout.marks[k], layout.marks[k + 1]);
      for (int turn = layout.split_sequences ? 0 : -1; turn < (layout.split_sequences ? 2 : 0); ++turn) {
        if (slices.empty()) continue;
        Stage::Owner held{nullptr, owner++, slices, turn};
        std::vector<std::byte> weights;
        if (layout.owners_are_replicas) {
          held.worker = &stage.replicas[static_cast<std::size_t>(held.number) % stage.replicas.size()];
        } else {
          held.worker = &stage.apart.emplace_back(table_, parallel_);
          weights = gather(parameters_of(table_, steps_of_owner(table_, stage.first, stage.end, slices)));
        }
        ASSERT_EQ(held.worker->hold_slices(held.number, number, stage.first, stage.end, slices, weights), Status::ok);
        stage.owners.push_back(std::move(held));
      }
    }
  }

  // Rows [row, row + rows) of a sequence of a boundary.
  std::span<float> rows(Floats& boundary, std::int64_t sequence, std::int64_t row, std::int64_t count) const {
    const std::int64_t width = GetParam().width, first = (sequence * graph_.seq + row) * width;
    return std::span(boundary).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count * width));
  }
  template <class T>
  std::span<T> tokens(std::vector<T>& all, std::int64_t sequence, std::int64_t row, std::int64_t count) const {
    return std::span(all).subspan(static_cast<std::size_t>(sequence * graph_.seq + row),
                                  static_cast<std::size_t>(count));
  }

  Gradients in_stages(const Layout& layout) {
    const std::int64_t seq = graph_.seq, width = GetParam().width;
    std::deque<Stage> stages;
    std::int64_t next = 0;
    for (const std::int64_t count : layout.stages) {
      stages.emplace_back(next, next + count);
      next += count;
    }
    stages.emplace_back(next, next + 1);
    EXPECT_EQ(next + 1, table_.size());
    for (std::size_t s = 0; s < stages.size(); ++s) hold(stages[s], static_cast<std::int32_t>(s), layout);

    const auto size = static_cast<std::size_t>(kBatch * seq * width);
    std::vector<Floats> x(stages.size(), Floats(size)), dy(stages.size(), Floats(size));
    Floats bottom(size), top(static_cast<std::size_t>(kBatch * seq));
    std::vector<double> sum(top.size()), loss(top.size());
    std::vector<std::vector<Floats>> norms(stages.size(), std::vector<Floats>(kBatch));
    embed(graph_, parameters_, batch_, {x[0].data(), kBatch * seq, width});
    const auto replica = [&](std::size_t s, std::int64_t q) -> StageWorker& {
      auto& all = stages[s].replicas;
      return all[static_cast<std::size_t>(q + static_cast<std::int64_t>(s)) % all.size()];
    };
    for (const std::int64_t q : layout.order) {
      for (std::size_t s = 0; s < stages.size(); ++s) {
        for (std::int64_t row = 0; row < seq; row += layout.chunk) {
          const std::int64_t count = std::min(layout.chunk, seq - row);
          const StageWorker::Chunk chunk{static_cast<std::int32_t>(s), q, row, count};
          if (s + 1 < stages.size()) {
            EXPECT_EQ(replica(s, q).forward(chunk, rows(x[s], q, row, count), rows(x[s + 1], q, row, count)),
                      Status::ok);
            continue;
          }
          Floats& of_norms = norms[s][static_cast<std::size_t>(q)];
          if (row + count == seq) of_norms.resize(static_cast<std::size_t>(norm_elements(table_, next, next + 1)));
          EXPECT_EQ(replica(s, q).head(chunk, rows(x[s], q, row, count), tokens(batch_.targets, q, row, count),
                                       {rows(dy[s], q, row, count), tokens(top, q, row, count),
                                        tokens(sum, q, row, count), tokens(loss, q, row, count), of_norms}),
                    Status::ok);
        }
      }
      for (std::size_t s = stages.size() - 1; s-- > 0;) {
        Floats& dx = s == 0 ? bottom : dy[s];
        // Of sequences that are kept one is recomputed all the same, as for a device that did not take it forward.
        if (!layout.keeps || (q == 2 && !layout.late)) {
          EXPECT_EQ(replica(s, q).recompute(static_cast<std::int32_t>(s), q, rows(x[s], q, 0, seq)), Status::ok);
        }
        Floats& of_norms = norms[s][static_cast<std::size_t>(q)];
        for (std::int64_t row = (seq - 1) / layout.chunk * layout.chunk; row >= 0; row -= layout.chunk) {
          const std::int64_t count = std::min(layout.chunk, seq - row);
          if (row == 0)
            of_norms.resize(static_cast<std::size_t>(norm_elements(table_, stages[s].first, stages[s].end)));
          EXPECT_EQ(replica(s, q).backward({static_cast<std::int32_t>(s), q, row, count},
                                           rows(dy[s + 1], q, row, count), rows(dx, q, row, count), of_norms),
                    Status::ok);
        }
      }
      for (std::size_t s = 0; s < stages.size(); ++s) {
        for (Stage::Owner& owner : stages[s].owners) {
          if (owner.turn >= 0 && owner.turn != q % 2) continue;
          const bool ran = &replica(s, q) == owner.worker, head = s + 1 == stages.size();
          StageWorker::Operands operands{.x = rows(x[s], q, 0, seq), .dy = {}, .top = {}, .sum = {}, .targets = {}};
          if (head) {
            operands.top = tokens(top, q, 0, seq);
            operands.sum = tokens(sum, q, 0, seq);
            operands.targets = tokens(batch_.targets, q, 0, seq);
          } else {
            operands.dy = rows(dy[s + 1], q, 0, seq);
          }
          EXPECT_EQ(owner.worker->add(owner.number, q, ran ? nullptr : &operands), Status::ok);
          if (q != 1) continue;  // one is taken away, and added again
          EXPECT_EQ(owner.worker->add(owner.number, q, &operands, true), Status::ok);
          EXPECT_EQ(owner.worker->add(owner.number, q, &operands), Status::ok);
        }
      }
    }
    promoted_rows_ = 0;
    for (std::size_t s = 0; s < stages.size() && layout.settled; ++s) {
      for (StageWorker& worker : stages[s].replicas) {
        const Bytes before = worker.memory(), of_one = worker.kept_by_sequence(static_cast<std::int32_t>(s));
        EXPECT_EQ(worker.settle(), Status::ok);
        EXPECT_GE(before - worker.memory(), graph_.wire == DType::f32 ? of_one * kBatch : Bytes(0));
      }
    }
    for (Stage& stage : stages) {
      for (const Stage::Owner& owner : stage.owners)
        promoted_rows_ += owner.worker->promoted_rows(owner.number, owner.slices);
    }
    stages_loss_ = std::accumulate(loss.begin(), loss.end(), 0.0) / static_cast<double>(loss.size());
    Gradients gradients;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      collect(stages[s], layout, gradients);
      fold_norms(stages[s], norms[s], gradients);
    }
    embed_backward(graph_, batch_, {bottom.data(), kBatch * seq, width}, gradients);
    return gradients;
  }

  // Each owner's slices are asked for in two halves, unless their sums are late.
  void collect(Stage& stage, const Layout& layout, Gradients& gradients) {
    const kernels::TokenUnit unit{GetParam().wire, graph_.loss_bits};
    std::map<const Operation*, kernels::TokenSumMatrix> sums;
    for (Stage::Owner& owner : stage.owners) {
      std::vector<std::vector<UnitRange>> halves(2);
      for (const UnitRange& slice : owner.slices) {
        const std::int64_t middle = (slice.begin + slice.end) / 2;
        if (middle > slice.begin) halves[0].push_back({slice.piece, slice.begin, middle});
        halves[1].push_back({slice.piece, middle, slice.end});
      }
      if (layout.late) halves = {owner.slices};
      for (const std::vector<UnitRange>& half : halves) {
        if (half.empty()) continue;
        const std::vector<Region> regions = regions_of(table_, half);
        std::int64_t elements = 0;
        for (const Region& region : regions) elements += region.elements();
        const DType type = owner.worker->partial_type(owner.number, half);
        std::vector<std::byte> part(static_cast<std::size_t>(elements * size_of(type)));
        Floats finished(static_cast<std::size_t>(elements));
        ASSERT_EQ(owner.worker->partial_sums(owner.number, half, type, part), Status::ok);
        ASSERT_EQ(owner.worker->gradient(owner.number, half, finished), Status::ok);
        kernels::round_gradient(parallel_, unit, {finished.data(), 1, elements});
        const std::byte* next = part.data();
        const float* value = finished.data();
        for (const Region& region : regions) {
          const model::TensorSpec& spec = graph_.tensor(region.parameter);
          kernels::TokenSumMatrix& into = sums[region.op];
          if (into.empty()) into = kernels::TokenSumMatrix(spec.rows, spec.cols, unit);
          into.add(parallel_, {region.rows.begin, region.rows.count(), region.cols.begin, region.cols.count()},
                   {type, next, region.cols.count()});
          next += region.elements() * size_of(type);
          Floats& gradient = gradients[spec.name];
          gradient.resize(static_cast<std::size_t>(spec.elements()));
          for (std::int64_t i = region.rows.begin; i < region.rows.end; ++i, value += region.cols.count())
            std::copy_n(value, region.cols.count(), &gradient[i * spec.cols + region.cols.begin]);
        }
      }
    }
    if (!layout.split_sequences) return;
    for (const auto& [op, total] : sums) {
      Floats& gradient = gradients[name(graph_.tensor(op->out[0].tensor).parameter)];
      // Of a parameter several operations may each have a part.
      Floats all(gradient.size());
      ASSERT_EQ(total.finish(parallel_, total.whole(), {all.data(), total.cols()}), kernels::ProductStatus::ok);
      kernels::round_gradient(parallel_, unit, {all.data(), 1, std::ssize(all)});
      const model::TensorView& out = op->out[0];
      for (std::int64_t i = out.row0; i < out.row0 + out.rows; ++i)
        std::copy_n(&all[i * total.cols() + out.col0], out.cols, &gradient[i * total.cols() + out.col0]);
    }
  }

  void fold_norms(const Stage& stage, const std::vector<Floats>& norms, Gradients& gradients) {
    std::vector<std::int64_t> sums(norms[0].size());
    for (const Floats& of_sequence : norms)
      ASSERT_EQ(kernels::add_to_token_sums(of_sequence, sums), kernels::ProductStatus::ok);
    std::span<const std::int64_t> rest = sums;
    for (std::int64_t piece = stage.first; piece < stage.end; ++piece) {
      for (const TensorId norm : table_.piece(piece).norms) {
        Floats& gradient = gradients[name(norm)];
        gradient.resize(static_cast<std::size_t>(graph_.tensor(norm).elements()));
        kernels::finish_token_sums(rest.first(gradient.size()), gradient);
        rest = rest.subspan(gradient.size());
      }
    }
  }

  model::StepGraph graph_;
  server::ParameterStore parameters_;
  PieceTable table_;
  Tokens batch_;
  kernels::Parallel parallel_{2};
  double stages_loss_ = 0;
  std::int64_t promoted_rows_ = 0;
};

TEST_P(StageWorkerTest, GivesTheGradientsOfTiles) {
  const Trained wanted = by_operations(graph_, parameters_, GetParam().wire, batch_);
  expect_same(in_stages({.stages = {4}}), wanted.gradients);
  EXPECT_NEAR(stages_loss_, wanted.loss, 1e-12 * std::abs(wanted.loss));
  EXPECT_EQ(promoted_rows_ > 0, GetParam().size > 1) << promoted_rows_;
}

TEST_P(StageWorkerTest, TheSameBitsInAnyLayout) {
  const Gradients wanted = in_stages({.stages = {4}, .chunk = GetParam().seq});
  const std::vector<Layout> layouts{
      {.stages = {1, 1, 1, 1}, .chunk = 128},
      {.stages = {3, 1}, .chunk = 256, .replicas = 2, .marks = {0, 0.3, 0.5, 1}, .order = {2, 0, 1}},
      {.stages = {1, 3}, .chunk = 128, .owners_are_replicas = false, .marks = {0, 0.1, 0.77, 1}, .order = {1, 2, 0}},
      {.stages = {2, 2},
       .chunk = 128,
       .replicas = 3,
       .marks = {0, 0.45, 1},
       .order = {2, 1, 0},
       .split_sequences = true},
      {.stages = {4},
       .chunk = 128,
       .owners_are_replicas = false,
       .marks = {0, 0.2, 0.21, 0.9, 1},
       .split_sequences = true},
      {.stages = {4}, .chunk = GetParam().seq, .keeps = true, .in_place = true},
      {.stages = {1, 3}, .chunk = 128, .replicas = 2, .marks = {0, 0.3, 0.5, 1}, .order = {2, 0, 1}, .keeps = true},
      {.stages = {2, 2},
       .chunk = 256,
       .replicas = 3,
       .owners_are_replicas = false,
       .marks = {0, 0.45, 1},
       .split_sequences = true,
       .keeps = true,
       .in_place = true},
      {.stages = {2, 2}, .chunk = 128, .marks = {0, 0.4, 1}, .split_sequences = true, .keeps = true, .late = true},
      {.stages = {4}, .chunk = 256, .replicas = 2, .order = {2, 1, 0}, .keeps = true, .late = true},
      {.stages = {1, 3}, .chunk = 128, .marks = {0, 0.4, 1}, .keeps = true, .late = true, .settled = true},
  };
  for (std::size_t i = 0; i < layouts.size(); i += all_or_few(1, 3)) {
    SCOPED_TRACE(i);
    expect_same(in_stages(layouts[i]), wanted);
  }
}

TEST_P(StageWorkerTest, RefusesWhatComesInTheWrongOrder) {
  StageWorker worker(table_, parallel_);
  const std::int64_t seq = graph_.seq, width = GetParam().width, rows = std::min<std::int64_t>(128, seq);
  Floats x(static_cast<std::size_t>(seq * width), 0.5F), y(static_cast<std::size_t>(rows * width)), none;
  const std::span<const float> first(x.data(), y.size());
  EXPECT_EQ(worker.forward({0, 0, 0, rows}, first, y), Status::absent);  // no weights
  EXPECT_EQ(worker.hold_stage(0, 0, 9, {}), Status::malformed);
  const std::vector<std::byte> weights = gather(parameters_of_stage(table_, 0, 2));
  EXPECT_EQ(worker.hold_stage(0, 0, 2, std::span(weights).first(weights.size() - 1)), Status::malformed);
  const std::vector<UnitRange> slices{{0, 0, 1}};
  const StageWorker::Operands of_nobody{.x = x, .dy = x, .top = {}, .sum = {}, .targets = {}};
  ASSERT_EQ(worker.hold_slices(5, 0, 0, 2, slices, {}), Status::ok);
  EXPECT_EQ(worker.add(5, 0, &of_nobody), Status::absent);  // no replica
  ASSERT_EQ(worker.hold_stage(0, 0, 2, weights), Status::ok);
  EXPECT_EQ(worker.hold_slices(5, 0, 0, 2, std::vector<UnitRange>{{0, 1, 1}}, {}), Status::malformed);
  EXPECT_EQ(worker.hold_slices(5, 0, 0, 2, std::vector<UnitRange>{{2, 0, 1}}, {}), Status::malformed);
  ASSERT_EQ(worker.hold_slices(5, 0, 0, 2, slices, {}), Status::ok);
  EXPECT_EQ(worker.forward({0, 0, 1, rows}, first, y), Status::malformed);
  EXPECT_EQ(worker.forward({0, 0, 0, rows}, first, std::span(y).first(3)), Status::malformed);
  EXPECT_EQ(worker.forward({0, -1, 0, rows}, first, y), Status::malformed);
  EXPECT_EQ(worker.forward({0, 0, 0, rows}, first, y), Status::ok);
  if (seq > rows) {
    EXPECT_EQ(worker.forward({0, 1, 128, seq - 128}, std::span(x).subspan(y.size()), none), Status::absent);
  }
  EXPECT_EQ(worker.backward({0, 0, 0, rows}, first, y, none), Status::absent);  // not opened
  EXPECT_EQ(worker.add(5, 0, nullptr), Status::absent);                         // not run backward
  EXPECT_EQ(worker.add(6, 0, nullptr), Status::absent);
  const StageWorker::Operands no_gradient{.x = x, .dy = {}, .top = {}, .sum = {}, .targets = {}};
  EXPECT_EQ(worker.add(5, 0, &no_gradient), Status::malformed);
  EXPECT_EQ(worker.gradient(5, std::vector<UnitRange>{{0, 0, 2}}, y), Status::malformed);  // not its own
  EXPECT_GE(worker.memory().value(), std::ssize(weights));
  x[0] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(worker.forward({0, 0, 0, rows}, first, y), Status::diverged);
  worker.clear();
  EXPECT_EQ(worker.memory().value(), 0);
  EXPECT_EQ(worker.forward({0, 0, 0, rows}, first, y), Status::absent);
}

// Rows that nobody wants, of what is gone through again for its state alone, are none at some place in a message.
TEST_P(StageWorkerTest, WritesNothingWhereNothingIsWanted) {
  StageWorker worker(table_, parallel_);
  const std::int64_t seq = graph_.seq, width = GetParam().width, rows = std::min<std::int64_t>(128, seq);
  const std::int64_t head = table_.size() - 1;
  const Floats x(static_cast<std::size_t>(rows * width), 0.5F);
  Floats beyond(2 * x.size(), 7);
  const std::span<float> nothing(beyond.data(), 0);
  const std::vector<std::int32_t> targets(static_cast<std::size_t>(rows), 1);
  ASSERT_EQ(worker.hold_stage(0, 0, 1, gather(parameters_of_stage(table_, 0, 1))), Status::ok);
  ASSERT_EQ(worker.hold_stage(1, head, head + 1, gather(parameters_of_stage(table_, head, head + 1))), Status::ok);
  EXPECT_EQ(worker.forward({0, 0, 0, rows}, x, nothing), Status::ok);
  EXPECT_EQ(worker.head({1, 0, 0, rows}, x, targets, {nothing, {}, {}, {}, {}}), Status::ok);
  if (rows == seq && GetParam().size == 1) {  // gradients of equal rows by large weights are too large
    ASSERT_EQ(worker.recompute(0, 1, x), Status::ok);
    EXPECT_EQ(worker.backward({0, 1, 0, rows}, x, nothing, {}), Status::ok);
  }
  EXPECT_EQ(std::ranges::count(beyond, 7.0F), std::ssize(beyond));
}

std::vector<StageCase> stage_cases() {
  return {
#ifndef CLEAVE_ADDRESS_SANITIZER  // several times as slow, and for memory alone
      StageCase{{"gpt2", 4, 4, 32, 1600, 600}},
      StageCase{{"llama", 4, 1, 32, 1600, 260}, DType::bf16},
#endif
      StageCase{{"gpt2", 2, 2, 24, 100, 127, false}},
      StageCase{{"opt", 4, 4, 32, 128, 385}},
      StageCase{{"llama", 6, 2, 48, 90, 300}},
      StageCase{{"gpt2", 4, 4, 32, 1600, 600}, DType::f16},
      StageCase{{"opt", 4, 4, 32, 128, 385, false}, DType::bf16},
      StageCase{{"llama", 6, 2, 48, 90, 300}, DType::f16, 80},
      StageCase{{"gpt2", 4, 4, 32, 128, 127}, DType::bf16, 80},
      StageCase{{"llama", 4, 1, 32, 1600, 260, false}},
      StageCase{{"llama", 6, 2, 48, 90, 300}, DType::f16, 1, DType::mxint8},
      StageCase{{"opt", 4, 4, 96, 128, 130, false}, DType::bf16, 1, DType::mxint8},
      StageCase{{"gpt2", 2, 2, 24, 100, 127}, DType::f32, 1, DType::mxint8},
  };
}
INSTANTIATE_TEST_SUITE_P(Cases, StageWorkerTest, ::testing::ValuesIn(stage_cases()));

}  // namespace
}  // namespace cleave::pieces
