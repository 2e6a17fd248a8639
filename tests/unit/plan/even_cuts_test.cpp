// Stages of equal time, on fleets whose processors, links or memories differ.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "small_work.hpp"
#include "stages/layout.hpp"
#include "stages/run_book.hpp"

namespace cleave::plan::stages {
namespace {

// Devices of so many FLOP/s and bytes; links that take next to no time.
struct Fleet {
  std::vector<fleet::DeviceProfile> devices;
  Problem problem;
  Fleet(const StageWork& work, const std::vector<double>& flops, double memory) {
    problem.work = &work;
    problem.book = std::make_shared<RunBook>(work);
    for (const double rate : flops) {
      problem.flops.push_back(rate);
      problem.memory.push_back(memory);
      problem.up.push_back(1e12);
      problem.down.push_back(1e12);
      devices.emplace_back();
    }
    problem.devices = devices;
    problem.nic_out = problem.nic_in = 1e15;
  }
};

double compute_time(const Problem& problem, const StageDraft& draft) {
  double flops = 0;
  for (const std::size_t device : draft.replicas) flops += problem.flops[device];
  return stage_flops(*problem.work, draft.cost) / flops;
}

void expect_whole(const StageWork& work, const std::vector<StageDraft>& stages) {
  std::int64_t at = 0;
  std::set<std::size_t> devices;
  for (const StageDraft& draft : stages) {
    EXPECT_EQ(draft.cost.first(), at);
    at = draft.cost.end();
    EXPECT_FALSE(draft.replicas.empty());
    for (const std::size_t device : draft.replicas) EXPECT_TRUE(devices.insert(device).second) << device;
  }
  EXPECT_EQ(at, std::ssize(work.pieces));
}

// 24 layers on 13 devices, of which one is twice as quick: nobody computes for a third longer than all on average, and
// the quickest device has the largest stage.
TEST(EvenCuts, FollowProcessors) {
  const StageWork work = small_work({.layers = 24}, 4);
  std::vector<double> flops(13, 1e9);
  flops[5] = 2e9;
  const Fleet fleet(work, flops, 1e12);
  Settings settings;
  settings.even_stages = 13;
  const std::vector<StageDraft> stages = cut_evenly(fleet.problem, settings);
  ASSERT_FALSE(stages.empty());
  expect_whole(work, stages);
  double sum = 0, most = 0, largest = 0, of_quickest = 0;
  for (const StageDraft& draft : stages) {
    sum += stage_flops(work, draft.cost);
    most = std::max(most, compute_time(fleet.problem, draft));
    largest = std::max(largest, stage_flops(work, draft.cost));
    if (std::ranges::find(draft.replicas, 5U) != draft.replicas.end()) of_quickest = stage_flops(work, draft.cost);
  }
  EXPECT_LE(most, 1.34 * sum / 14e9);
  EXPECT_EQ(of_quickest, largest);
}

// Groups of several devices are made alike, and every device has a place.
TEST(EvenCuts, GroupsAreAlike) {
  const StageWork work = small_work({.layers = 8}, 4);
  std::vector<double> flops;
  for (int i = 0; i < 36; ++i) flops.push_back(1e9 * (1 + 0.02 * i));
  const Fleet fleet(work, flops, 1e12);
  Settings settings;
  settings.even_stages = 9;
  const std::vector<StageDraft> stages = cut_evenly(fleet.problem, settings);
  ASSERT_FALSE(stages.empty());
  expect_whole(work, stages);
  std::vector<double> rates;
  for (const StageDraft& draft : stages) {
    double& rate = rates.emplace_back(0);
    for (const std::size_t device : draft.replicas) rate += flops[device];
  }
  EXPECT_LE(*std::ranges::max_element(rates), 1.02 * *std::ranges::min_element(rates));
}

// With little memory stages are as small as that, or there are none; fewer devices may be asked for.
TEST(EvenCuts, ObeyMemoryAndShares) {
  const StageWork work = small_work({.layers = 12}, 4);
  const StageCost layer(work, 0, 2, 128);
  const double held =
      static_cast<double>(
          (layer.weights() + layer.at_work() * 2 + layer.open_forward() * 2 + layer.open_backward() * 2).value()) +
      layer.gradient_elements() * 4;
  Settings settings;
  settings.even_stages = 26;
  const Fleet enough(work, std::vector<double>(26, 1e9), 1.6 * held);
  const std::vector<StageDraft> stages = cut_evenly(enough.problem, settings);
  ASSERT_FALSE(stages.empty());
  expect_whole(work, stages);
  for (const StageDraft& draft : stages) EXPECT_LE(static_cast<double>(draft.cost.weights().value()), 1.6 * held);
  const Fleet little(work, std::vector<double>(26, 1e9), 0.2 * held);
  EXPECT_TRUE(cut_evenly(little.problem, settings).empty());

  settings.even_stages = 6;
  settings.holding = 0.5;
  std::vector<double> flops(24, 1e9);
  for (std::size_t i = 0; i < flops.size(); i += 2) flops[i] = 1.5e9;
  const Fleet half(work, flops, 1e12);
  for (const StageDraft& draft : cut_evenly(half.problem, settings)) {
    for (const std::size_t device : draft.replicas) EXPECT_EQ(device % 2, 0U) << "a slow one";
  }
}

}  // namespace
}  // namespace cleave::plan::stages
