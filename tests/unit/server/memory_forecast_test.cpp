// The memory forecast simulates the step that the trainer will run, and counts what its tensor store will hold.
#include "cleave/server/memory_forecast.hpp"

#include <gtest/gtest.h>

#include "cleave/sched/simulated_fleet.hpp"

namespace cleave::server {
namespace {

TrainerOptions small_run() {
  TrainerOptions options;
  options.model = {.family = "gpt2",
                   .vocab_size = 96,
                   .n_layer = 2,
                   .n_head = 2,
                   .n_kv_head = 2,
                   .d_model = 64,
                   .d_ff = 256,
                   .seq_len = 32,
                   .max_pos = 32};
  for (std::int64_t i = 0; i < 6; ++i) {
    const auto factor = static_cast<double>(1 + i % 3);
    options.devices.push_back({.id = DeviceId(i),
                               .name = i < 3 ? "phone" : "laptop",
                               .compute = FlopsPerSecond(1e10 * factor),
                               .memory = Bytes(64 << 20),
                               .downlink = BytesPerSecond(1e7 * factor),
                               .uplink = BytesPerSecond(5e6),
                               .latency = Seconds(1e-3),
                               .jitter = Seconds(0)});
  }
  return options;
}

Seconds simulated(const TrainerOptions& options) {
  sched::SimulatedFleet fleet(options.devices, options.server(), options.wire);
  return sched::Scheduler(fleet, scheduling(options)).run(training_graph(options)).time;
}

// Each key that changes the schedule changes the forecast's too, asynchronous among them.
TEST(MemoryForecast, FollowsTheScheduleOfTheRun) {
  TrainerOptions options = small_run();
  const Seconds together = forecast_memory(options, DeviceRanks::sent_all(2)).step;
  EXPECT_EQ(together, simulated(options));

  options.asynchronous = false;
  const Seconds one_by_one = forecast_memory(options, DeviceRanks::sent_all(2)).step;
  EXPECT_EQ(one_by_one, simulated(options));
  EXPECT_GT(one_by_one, together);

  options.layout.row_groups = 2;
  options.plan.keep_columns = plan::KeepColumns::always;
  EXPECT_EQ(forecast_memory(options, DeviceRanks::sent_all(2)).step, simulated(options));

  options.fleet.clock = ClockMode::off;
  EXPECT_EQ(forecast_memory(options, DeviceRanks::sent_all(2)).step, simulated(options));
}

TEST(MemoryForecast, CountsParametersTwoMomentsAndActivations) {
  TrainerOptions options = small_run();
  const model::StepGraph graph = training_graph(options);
  const MemoryForecast memory = forecast_memory(options, DeviceRanks::sent_all(1));
  EXPECT_EQ(memory.parameters.value(), 3 * 4 * graph.parameter_count());
  EXPECT_GE(memory.pool, memory.activations);
  EXPECT_LE(memory.pool, memory.activations + memory.sums);
  EXPECT_EQ(memory.server(), memory.process + memory.runtime + memory.parameters + memory.pool + memory.messages);
  EXPECT_GT(memory.messages, Bytes(0));
  EXPECT_FALSE(memory.device_name.empty());

  const MemoryForecast frozen = [&] {
    options.freeze = {"transformer.h.0.*"};
    return forecast_tensors(options);
  }();
  EXPECT_LT(frozen.parameters, memory.parameters);
}

// Of 20 steps every fifth has a copy: six would be needed only if the oldest were not let go first.
TEST(MemoryForecast, CountsCopiesForRollback) {
  TrainerOptions options = small_run();
  EXPECT_EQ(forecast_tensors(options).history, Bytes(0));
  const std::int64_t state = 3 * 4 * training_graph(options).parameter_count();
  for (const auto& [steps, copies] : {std::pair<std::int64_t, std::int64_t>{1, 2}, {4, 5}, {6, 4}, {20, 5}}) {
    options.executor.verification.rollback = steps;
    const MemoryForecast memory = forecast_memory(options, DeviceRanks::sent_all(1));
    EXPECT_EQ(memory.history.value(), copies * state) << steps;
    EXPECT_EQ(memory.server(),
              memory.process + memory.runtime + memory.parameters + memory.history + memory.pool + memory.messages);
  }
}

}  // namespace
}  // namespace cleave::server
