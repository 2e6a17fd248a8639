// What a loss of devices adds to the operations that it hits, by the same operations left alone.
#include "cleave/plan/cost.hpp"
#include "graphs.hpp"

namespace cleave::sched {
namespace {

constexpr std::int64_t kOfFleet = 128;

// Two products; a kernel holds the second one back, so that it queues behind the first on every device.
model::StepGraph two_products() {
  return graph_of({gemm(0, {16384, 8192, 4096}), kernel(1, 1000, 1000), gemm(2, {16384, 8192, 4096}, {1})});
}

struct Ends {
  Seconds first, second;
};

Ends run(fleet::ChurnTrace churn, StepReport* told = nullptr) {
  SimulatedFleet fleet(edge_devices(kOfFleet, {0, 0}), wide_server(), DType::f32, std::move(churn));
  Scheduler scheduler(fleet, options_of());
  const model::StepGraph graph = two_products();
  const StepReport report = scheduler.run(graph);
  if (told != nullptr) *told = report;
  Ends ends;
  for (const OperationTiming& timing : report.operations) {
    if (timing.op == OpId(0)) ends.first = timing.end;
    if (timing.op == OpId(2)) ends.second = timing.end;
  }
  return ends;
}

fleet::ChurnTrace lost_at(Seconds at, std::int64_t count) {
  fleet::ChurnTrace trace;
  for (std::int64_t d = 0; d < count; ++d) trace.push_back({at, DeviceId(d * 17), fleet::ChurnKind::leave, 1.0});
  return trace;
}

TEST(Recovery, BlocksThatAreComputedAgainDoNotQueueBehindLaterOperations) {
  const Ends calm = run({});
  for (const double moment : {0.3, 0.5, 0.7, 0.8}) {
    for (const std::int64_t count : {1, 3, 5}) {
      StepReport report;
      const Ends hit = run(lost_at(calm.first * moment, count), &report);
      ASSERT_GT(report.lost, 0);
      EXPECT_LE((hit.first - calm.first).value(), 0.015 * calm.first.value()) << count << " at " << moment;
      // The devices are away for the rest of it, and both products' blocks are made again before it can end.
      const double share = static_cast<double>(count) / kOfFleet;
      EXPECT_LT((hit.second - calm.second).value(), 2 * share * calm.second.value()) << count << " at " << moment;
    }
  }
}

TEST(Recovery, LoadsCountWhatIsAheadAndWhatIsUnderWay) {
  const model::StepGraph graph = two_products();
  SimulatedFleet fleet({device(0, 1e12, 1e6, 1e6)}, wide_server(), DType::f32);
  fleet.begin_step(graph);
  const auto tasklet = [&](std::int64_t id, std::int64_t op, std::int64_t turn) {
    Tasklet t{.id = TaskletId(id), .op = OpId(op), .piece = {}, .turn = turn};
    t.piece.box = {0, 100, 0, 100, 0, 4096};
    plan::estimate_cost(plan::work_of(graph.operation(OpId(op)), DType::f32), t.piece, fleet.devices()[0],
                        options_of().plan);
    return t;
  };
  const Tasklet earlier = tasklet(0, 0, 1), later = tasklet(1, 2, 3);
  fleet.submit(earlier);
  fleet.submit(later);
  const Seconds one = earlier.piece.bytes_down / BytesPerSecond(1e6);
  // Its only panel is under way.
  EXPECT_NEAR(fleet.devices_ahead_of({0, 0})[0].down_busy.value(), one.value(), 1e-9);
  EXPECT_NEAR(fleet.devices_ahead_of({0, 2})[0].down_busy.value(), one.value(), 1e-9);
  EXPECT_NEAR(fleet.devices_ahead_of({0, 3})[0].down_busy.value(), 2 * one.value(), 1e-9);
  // Results are ahead only of what does not go ahead of their tasklets.
  const Seconds up = earlier.piece.bytes_up / BytesPerSecond(1e6);
  EXPECT_NEAR(fleet.devices_ahead_of({0, 0})[0].up_busy.value(), 0, 1e-9);
  EXPECT_NEAR(fleet.devices_ahead_of({0, 2})[0].up_busy.value(), up.value(), 1e-9);
  EXPECT_NEAR(fleet.devices_ahead_of({1, 0})[0].up_busy.value(), 2 * up.value(), 1e-9);
}

}  // namespace
}  // namespace cleave::sched
