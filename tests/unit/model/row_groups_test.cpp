// Row groups: the same work in other portions, in a legal order, with no wait between groups of different sequences.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "cleave/model/family.hpp"
#include "tiny_models.hpp"

namespace cleave::model {
namespace {

constexpr std::int64_t kSequences = 5;

StepGraph graph_with(std::int64_t groups) {
  StepOptions options;
  options.batch = kSequences;
  options.row_groups = groups;
  return build_step(tiny_llama(), options);
}

TEST(RowGroups, OneGroupIsTheWholeBatch) {
  StepOptions options;
  options.batch = kSequences;
  EXPECT_EQ(graph_with(1).operations.size(), build_step(tiny_llama(), options).operations.size());
}

TEST(RowGroups, TheWorkIsTheSame) {
  const StepGraph whole = graph_with(1);
  for (const std::int64_t groups : {2, 3, 5, 40}) {
    const StepGraph parts = graph_with(groups);
    EXPECT_EQ(device_flops(parts), device_flops(whole)) << groups;
    EXPECT_EQ(parts.tensors.size(), whole.tensors.size()) << groups;
  }
}

TEST(RowGroups, OnlyTheChainIsSplitAndNamesStayUnique) {
  const StepGraph whole = graph_with(1), parts = graph_with(2);
  std::map<Phase, std::size_t> before, after;
  std::set<std::string> names;
  for (const Operation& op : whole.operations) ++before[op.phase];
  for (const Operation& op : parts.operations) {
    ++after[op.phase];
    EXPECT_TRUE(names.insert(op.name).second) << op.name;
  }
  EXPECT_GT(after[Phase::forward], 3 * before[Phase::forward] / 2);
  EXPECT_GT(after[Phase::input_gradient], 3 * before[Phase::input_gradient] / 2);
  EXPECT_EQ(after[Phase::update], before[Phase::update]);
}

// Gradients of gains and biases are sums over all rows, in one order whatever the groups.
TEST(RowGroups, SumsOverRowsStayWhole) {
  const StepGraph parts = graph_with(2);
  std::set<TensorId> sums;
  for (const Operation& op : parts.operations) {
    if (op.kind != OpKind::rms_norm_backward) continue;
    EXPECT_NE(op.out[0].valid(), op.out[1].valid()) << op.name;
    if (!op.out[1].valid()) continue;
    EXPECT_EQ(op.in[0].rows, parts.batch * parts.seq) << op.name;
    EXPECT_TRUE(sums.insert(op.out[1].tensor).second) << op.name;
  }
  EXPECT_FALSE(sums.empty());
}

TEST(RowGroups, GroupsCoverTheRowsOfEachSequenceOnce) {
  for (const std::int64_t groups : {2, 3, 5}) {
    const StepGraph parts = graph_with(groups);
    std::map<std::int64_t, std::int64_t> rows;  // of each tensor, written by attention
    for (const Operation& op : parts.operations) {
      if (op.kind != OpKind::attention_forward) continue;
      EXPECT_EQ(op.out[0].rows, op.attention.batch * op.attention.seq);
      EXPECT_EQ(op.out[0].row0 % op.attention.seq, 0);
      rows[op.out[0].tensor.value] += op.out[0].rows;
    }
    for (const auto& [tensor, total] : rows) EXPECT_EQ(total, parts.batch * parts.seq) << groups;
  }
}

TEST(RowGroups, AGroupWaitsForNoOther) {
  const StepGraph parts = graph_with(2);
  const auto group_of = [](const Operation& op) { return op.name.substr(op.name.find(".rows") + 5); };
  for (const Operation& op : parts.operations) {
    if (op.name.find(".rows") == std::string::npos) continue;
    for (const OpId before : op.after) {
      EXPECT_LT(before, op.id);
      const Operation& other = parts.operation(before);
      if (other.name.find(".rows") != std::string::npos) { EXPECT_EQ(group_of(other), group_of(op)) << op.name; }
    }
  }
}

}  // namespace
}  // namespace cleave::model
