// Whatever order a scheduler takes within `after`, two operations that conflict run in the serial order.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "tiny_models.hpp"

namespace cleave::model {
namespace {

bool overlap(const TensorView& a, const TensorView& b) {
  const auto meet = [](std::int64_t a0, std::int64_t an, std::int64_t b0, std::int64_t bn) {
    return std::max(a0, b0) < std::min(a0 + an, b0 + bn);
  };
  return a.valid() && b.valid() && a.tensor == b.tensor && meet(a.row0, a.rows, b.row0, b.rows) &&
         meet(a.col0, a.cols, b.col0, b.cols);
}

bool any_overlap(const std::vector<TensorView>& a, const std::vector<TensorView>& b) {
  return std::ranges::any_of(a, [&b](const TensorView& x) {
    return std::ranges::any_of(b, [&x](const TensorView& y) { return overlap(x, y); });
  });
}

bool conflict(const Operation& a, const Operation& b) {
  return any_overlap(a.out, b.out) || any_overlap(a.out, b.in) || any_overlap(a.in, b.out);
}

/// ancestors[i][j]: j must be complete before i starts.
std::vector<std::vector<bool>> closure(const StepGraph& graph) {
  const std::size_t n = graph.operations.size();
  std::vector<std::vector<bool>> ancestors(n, std::vector<bool>(n));
  for (std::size_t i = 0; i < n; ++i) {
    for (const OpId before : graph.operations[i].after) {
      const auto j = static_cast<std::size_t>(before.value);
      ancestors[i][j] = true;
      for (std::size_t k = 0; k < j; ++k) ancestors[i][k] = ancestors[i][k] || ancestors[j][k];
    }
  }
  return ancestors;
}

std::vector<StepOptions> option_sets() {
  std::vector<StepOptions> all;
  for (const StepKind kind : {StepKind::train, StepKind::evaluate}) {
    for (const bool clip : {true, false}) {
      for (const std::int64_t loss_rows : {0, 3, 1}) {
        for (const auto& freeze : {std::vector<std::string>{}, {"*bias", "*wte*", "*embed_tokens*"}, {"*.0.*"}}) {
          StepOptions options;
          options.kind = kind;
          options.batch = 2;
          options.clip = clip;
          options.loss_rows = loss_rows;
          options.freeze = freeze;
          all.push_back(options);
        }
      }
    }
  }
  return all;
}

class EveryGraph : public ::testing::TestWithParam<NamedConfig> {};

TEST_P(EveryGraph, OrdersEveryConflict) {
  for (const StepOptions& options : option_sets()) {
    const StepGraph graph = build_step(GetParam().config, options);
    const std::vector<std::vector<bool>> ancestors = closure(graph);
    for (std::size_t i = 0; i < graph.operations.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (conflict(graph.operations[i], graph.operations[j])) {
          ASSERT_TRUE(ancestors[i][j]) << graph.operations[i].name << " does not wait for " << graph.operations[j].name;
        }
      }
    }
  }
}

TEST_P(EveryGraph, HasEdgesOnlyWhereOperationsConflict) {
  for (const StepOptions& options : option_sets()) {
    const StepGraph graph = build_step(GetParam().config, options);
    for (const Operation& op : graph.operations) {
      EXPECT_TRUE(std::ranges::is_sorted(op.after)) << op.name;
      EXPECT_TRUE(std::ranges::adjacent_find(op.after) == op.after.end()) << op.name;
      for (const OpId before : op.after) {
        EXPECT_LT(before, op.id) << op.name;
        EXPECT_TRUE(conflict(op, graph.operation(before))) << op.name << " and " << graph.operation(before).name;
      }
    }
  }
}

TEST_P(EveryGraph, ReadsNothingThatNobodyWrote) {
  for (const StepOptions& options : option_sets()) {
    const StepGraph graph = build_step(GetParam().config, options);
    std::set<TensorId> written;
    for (const TensorSpec& spec : graph.tensors) {
      if (spec.role == TensorRole::parameter || spec.role == TensorRole::tokens || spec.role == TensorRole::targets) {
        written.insert(spec.id);
      }
    }
    for (const Operation& op : graph.operations) {
      for (const TensorView& view : op.in) EXPECT_TRUE(written.contains(view.tensor)) << op.name;
      const bool adds = op.accumulate || op.kind == OpKind::add_bias || op.kind == OpKind::accumulate ||
                        op.kind == OpKind::rope || op.kind == OpKind::rope_backward ||
                        op.kind == OpKind::embed_backward;
      for (const TensorView& view : op.out) {
        if (!view.valid()) continue;
        if (adds && op.kind != OpKind::cross_entropy) { EXPECT_TRUE(written.contains(view.tensor)) << op.name; }
        written.insert(view.tensor);
      }
    }
  }
}

TEST_P(EveryGraph, GivesEveryOperationItsOwnNameAndEveryViewItsPlace) {
  for (const StepOptions& options : option_sets()) {
    const StepGraph graph = build_step(GetParam().config, options);
    std::set<std::string> names;
    for (std::size_t i = 0; i < graph.operations.size(); ++i) {
      const Operation& op = graph.operations[i];
      EXPECT_EQ(op.id, OpId(static_cast<std::int64_t>(i)));
      EXPECT_TRUE(names.insert(op.name).second) << op.name;
      EXPECT_TRUE(op.name.ends_with(op.type.substr(op.type.rfind('.') + 1))) << op.name << " " << op.type;
      for (const auto* views : {&op.in, &op.out}) {
        for (const TensorView& view : *views) {
          if (!view.valid()) continue;
          const TensorSpec& spec = graph.tensor(view.tensor);
          EXPECT_TRUE(view.row0 >= 0 && view.rows >= 1 && view.row0 + view.rows <= spec.rows) << op.name;
          EXPECT_TRUE(view.col0 >= 0 && view.cols >= 1 && view.col0 + view.cols <= spec.cols) << op.name;
        }
      }
    }
  }
}

TEST_P(EveryGraph, LetsNoInputGradientWaitForAWeightGradient) {
  StepOptions options;
  options.batch = 2;
  const StepGraph graph = build_step(GetParam().config, options);
  const std::vector<std::vector<bool>> ancestors = closure(graph);
  for (const Operation& op : graph.operations) {
    if (op.phase != Phase::input_gradient) continue;
    for (const Operation& before : graph.operations) {
      if (before.phase != Phase::weight_gradient) continue;
      EXPECT_FALSE(ancestors[static_cast<std::size_t>(op.id.value)][static_cast<std::size_t>(before.id.value)])
          << op.name << " waits for " << before.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryGraph, ::testing::ValuesIn(tiny_models()), [](const auto& parameter) {
  std::string name = parameter.param.name;
  std::ranges::replace(name, ' ', '_');
  return name;
});

}  // namespace
}  // namespace cleave::model
