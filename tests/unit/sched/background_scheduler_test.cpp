// Weight gradients that nothing waits for take few devices, give way to the critical path, and end with it.
#include <algorithm>
#include <cmath>

#include "graphs.hpp"

namespace cleave::sched {
namespace {

SchedulerOptions without_copies() { return {.plan = {.server = wide_server()}, .wire = DType::f16, .copies = false}; }

constexpr GemmShape kChain{32768, 2048, 2048}, kWeights{2048, 2048, 32768};

// `layers` input gradients, one after another, each with a weight gradient beside it, of this phase.
model::StepGraph backward_pass(std::int64_t layers, model::Phase beside = model::Phase::weight_gradient) {
  std::vector<model::Operation> all;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const std::vector<std::int64_t> after =
        layer == 0 ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{2 * layer - 2};
    all.push_back(gemm(2 * layer, kChain, after, model::Phase::input_gradient));
    all.push_back(gemm(2 * layer + 1, kWeights, after, beside));
  }
  return graph_of(std::move(all));
}

// The same operations one after another, each on the whole fleet.
model::StepGraph one_by_one(std::int64_t layers) {
  std::vector<model::Operation> all = backward_pass(layers, model::Phase::input_gradient).operations;
  for (std::size_t i = 1; i < all.size(); ++i) all[i].after = {OpId(static_cast<std::int64_t>(i) - 1)};
  return graph_of(std::move(all));
}

StepReport run_complete(const model::StepGraph& graph, const SchedulerOptions& options, fleet::ChurnTrace churn = {}) {
  SimulatedFleet simulated(edge_devices(32, {0, 0}), wide_server(), DType::f16, std::move(churn));
  Book book(graph);
  WatchedFleet fleet(simulated, book);
  const StepReport report = Scheduler(fleet, options).run(graph);
  book.expect_complete();
  return report;
}

TEST(BackgroundScheduler, WeightGradientsMoveFewerBytesAndEndWithTheCriticalPath) {
  const StepReport deferrable = run_complete(backward_pass(60), without_copies());
  const StepReport hurried = run_complete(backward_pass(60, model::Phase::input_gradient), without_copies());
  EXPECT_LT(deferrable.time.value(), 0.9 * hurried.time.value());
  const StepReport whole = run_complete(one_by_one(60), without_copies());
  EXPECT_LT(deferrable.bytes_down.value(), 0.8 * static_cast<double>(whole.bytes_down.value()));
  Seconds chain_end{0}, end{0};
  for (const OperationTiming& timing : deferrable.operations) {
    end = std::max(end, timing.end);
    if (timing.op.value % 2 == 0) chain_end = std::max(chain_end, timing.end);
  }
  EXPECT_LT((end - chain_end).value(), 0.15 * deferrable.time.value());
}

TEST(BackgroundScheduler, WhatIsLostIsDoneAgain) {
  fleet::ChurnTrace churn;
  for (std::int64_t d = 0; d < 8; ++d)
    churn.push_back({Seconds(0.5 + 0.3 * static_cast<double>(d)), DeviceId(4 * d), fleet::ChurnKind::leave, 1});
  const StepReport report = run_complete(backward_pass(60), without_copies(), churn);
  EXPECT_GT(report.lost, 0);
}

// Devices with little memory move too much in any such plan. That is found out once, for the step, and not held against
// the next one, nor against the same step on devices with more.
TEST(BackgroundScheduler, WithLittleMemoryNothingIsDeferred) {
  const model::StepGraph graph = backward_pass(60), hurried = backward_pass(60, model::Phase::input_gradient);
  std::vector<fleet::DeviceProfile> devices = edge_devices(32, {0, 0});
  for (fleet::DeviceProfile& device : devices) device.memory = Bytes(24'000'000);
  SimulatedFleet fleet(devices, wide_server(), DType::f16);
  Scheduler scheduler(fleet, without_copies());
  const StepReport first = scheduler.run(graph), second = scheduler.run(graph);
  EXPECT_EQ(first.bytes_down, second.bytes_down);
  EXPECT_NEAR(first.time.value(), second.time.value(), 1e-6 * first.time.value());
  SimulatedFleet other(devices, wide_server(), DType::f16);
  EXPECT_EQ(first.bytes_down, Scheduler(other, without_copies()).run(hurried).bytes_down);
}

TEST(BackgroundScheduler, AWeightGradientThatTheCriticalPathWaitsForIsNotDeferred) {
  // The second operation would be alone on the fleet and the third waits for it.
  const model::StepGraph graph = graph_of(
      {gemm(0, kChain, {}, model::Phase::input_gradient), gemm(1, kWeights, {}, model::Phase::weight_gradient),
       gemm(2, kChain, {0, 1}, model::Phase::input_gradient), gemm(3, kChain, {2}, model::Phase::input_gradient),
       gemm(4, kChain, {3}, model::Phase::input_gradient), gemm(5, kChain, {4}, model::Phase::input_gradient)});
  const StepReport report = run_complete(graph, without_copies());
  for (const OperationTiming& timing : report.operations) {
    EXPECT_LT((timing.end - timing.start).value(), 4 * timing.lower_bound.value()) << timing.op.value;
  }
}

}  // namespace
}  // namespace cleave::sched
