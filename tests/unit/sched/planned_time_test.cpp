// What the planner predicts for one operation is what the simulated fleet takes for it, when nothing is disturbed.
#include <gtest/gtest.h>

#include "cleave/sched/simulated_fleet.hpp"

namespace cleave::sched {
namespace {

Seconds simulated(const plan::Work& work, const plan::OperationPlan& plan, std::vector<fleet::DeviceProfile> devices,
                  const fleet::ServerProfile& server) {
  model::StepGraph graph;
  model::Operation op;
  op.id = OpId(0);
  op.kind = model::OpKind::gemm;
  op.gemm = work.gemm;
  graph.operations.push_back(op);
  SimulatedFleet fleet(std::move(devices), server, work.wire);
  fleet.begin_step(graph);
  std::int64_t next = 0;
  for (const plan::TaskletPlan& piece : plan.tasklets) {
    Tasklet tasklet;
    tasklet.id = TaskletId(next++);
    tasklet.op = op.id;
    tasklet.piece = piece;
    fleet.submit(tasklet);
  }
  Seconds last{0};
  for (std::int64_t done = 0; done < next;) {
    const Event event = fleet.next_event(Seconds(1e18));
    if (event.kind == EventKind::timeout) return Seconds(-1);
    if (event.kind != EventKind::done) continue;
    ++done;
    last = event.at;
  }
  return last;
}

TEST(PlannedTime, IsWhatTheSimulatedFleetTakes) {
  const fleet::DeviceGroup edge{.name = "edge",
                                .count = 1,
                                .compute_flops = {5e12, 7e12},
                                .memory_bytes = {1e9, 3e9},
                                .downlink_bytes = {10e6, 100e6},
                                .uplink_bytes = {5e6, 10e6},
                                .latency_s = {0, 0.02}};
  fleet::ServerProfile unlimited, narrow;
  unlimited.nic_out = unlimited.nic_in = fleet::kUnlimitedRate;
  narrow.nic_out = narrow.nic_in = BytesPerSecond(1e9);
  const std::pair<plan::Partition, plan::Objective> kinds[] = {{plan::Partition::automatic, plan::Objective::step},
                                                               {plan::Partition::automatic, plan::Objective::alone},
                                                               {plan::Partition::equal, plan::Objective::step}};
  for (const std::int64_t count : {1, 8, 100, 400}) {
    for (const double memory : {1e9, 2e7}) {
      fleet::DeviceGroup group = edge;
      group.count = count;
      group.memory_bytes = {memory, 2 * memory};
      const std::vector<fleet::DeviceProfile> devices = fleet::draw_devices({group}, 7);
      std::vector<plan::DeviceState> states;
      for (const fleet::DeviceProfile& profile : devices) {
        plan::DeviceState state;
        state.profile = profile;
        states.push_back(state);
      }
      for (const fleet::ServerProfile& server : {fleet::ServerProfile{}, unlimited, narrow}) {
        for (const GemmShape& shape : {GemmShape{8192, 4096, 4096}, GemmShape{2048, 2048, 65536}}) {
          for (const auto& [scheme, objective] : kinds) {
            plan::Work work;
            work.gemm = shape;
            work.wire = DType::f16;
            plan::PlanOptions options;
            options.partition = scheme;
            options.objective = objective;
            options.server = server;
            const plan::OperationPlan plan = plan::plan_operation(work, states, options);
            const Seconds took = simulated(work, plan, devices, server);
            EXPECT_NEAR(took / plan.time, 1.0, 0.02)
                << count << " devices, memory " << memory << ", k " << shape.k << ", interface "
                << server.nic_out.value() << ", scheme " << static_cast<int>(scheme) << ", objective "
                << static_cast<int>(objective);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace cleave::sched
