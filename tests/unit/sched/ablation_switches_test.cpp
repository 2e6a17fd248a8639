// The switches that turn single ideas off, for ablations: panels, and operations that overlap.
#include <algorithm>

#include "graphs.hpp"

namespace cleave::sched {
namespace {

// Two chains that need each other only at their ends.
model::StepGraph two_chains() {
  return graph_of({gemm(0, {256, 192, 512}), gemm(1, {256, 128, 512}), kernel(2, 200, 300, {0}),
                   gemm(3, {256, 192, 512}, {1}, model::Phase::weight_gradient), gemm(4, {200, 160, 512}, {2}),
                   gemm(5, {100, 160, 512}, {3, 4})});
}

StepReport run(const model::StepGraph& graph, const SchedulerOptions& options) {
  SimulatedFleet fleet(mixed_devices(6, 4), wide_server(), DType::f32);
  return Scheduler(fleet, options).run(graph);
}

SchedulerOptions options_with(bool asynchronous, std::int64_t panels) {
  SchedulerOptions options{.plan = {.server = wide_server()}, .asynchronous = asynchronous};
  options.plan.most_panels = panels;
  return options;
}

TEST(AblationSwitches, WithABarrierOperationsRunOneAfterAnother) {
  for (const model::StepGraph& graph : {two_chains(), random_graph(40, 9)}) {
    const StepReport report = run(graph, options_with(false, 32));
    ASSERT_EQ(report.operations.size(), graph.operations.size());
    Seconds sum{0};
    for (std::size_t i = 0; i < report.operations.size(); ++i) {
      sum += report.operations[i].end - report.operations[i].start;
      if (i > 0) { EXPECT_EQ(report.operations[i].start, report.operations[i - 1].end); }
    }
    EXPECT_NEAR(sum.value(), report.time.value(), 1e-9);
  }
}

TEST(AblationSwitches, WithoutABarrierOperationsOverlap) {
  const StepReport with = run(two_chains(), options_with(false, 32)),
                   without = run(two_chains(), options_with(true, 32));
  EXPECT_LT(without.time, with.time);
  const auto& all = without.operations;
  EXPECT_TRUE(std::any_of(all.begin() + 1, all.end(), [&](const OperationTiming& timing) {
    return timing.start < (&timing - 1)->end;  // in order of completion
  }));
}

TEST(AblationSwitches, OnePanelMeansNoStreaming) {
  plan::Work work;
  work.gemm = {2048, 2048, 512};
  std::vector<plan::DeviceState> devices;
  for (const fleet::DeviceProfile& profile : edge_devices(4, {0, 0})) devices.push_back({profile, {}, {}, {}});
  const auto plan_with = [&](std::int64_t panels) {
    return plan::plan_operation(work, devices, options_with(true, panels).plan);
  };
  const plan::OperationPlan one = plan_with(1), many = plan_with(32);
  for (const plan::TaskletPlan& piece : one.tasklets) EXPECT_EQ(piece.panels, 1);
  EXPECT_TRUE(std::any_of(many.tasklets.begin(), many.tasklets.end(), [](const auto& p) { return p.panels > 1; }));
  EXPECT_LT(many.time, one.time);
}

}  // namespace
}  // namespace cleave::sched
