// A small model, a small fleet and a server that nothing waits for, for tests of steps in stages.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cleave/fleet/churn.hpp"
#include "cleave/fleet/profile.hpp"
#include "cleave/model/family.hpp"
#include "cleave/plan/stage_cost.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "cleave/sched/step_spec.hpp"
#include "unit/small_model.hpp"

namespace cleave::sched {

inline const fleet::ServerProfile kWide{fleet::kUnlimitedRate, fleet::kUnlimitedRate, FlopsPerSecond(1e12),
                                        BytesPerSecond(1e11)};

/// What of a model is not always the same.
struct ModelShape {
  std::string family = "opt";
  std::int64_t layers = 3, width = 128, vocabulary = 640;
  std::vector<std::string> freeze{};
};

inline model::StepGraph graph_of_shape(const ModelShape& shape, std::int64_t batch) {
  const model::ModelConfig config = model::small_model(shape.family, shape.layers, shape.width, shape.vocabulary, 384);
  return model::build_step(config, {.kind = model::StepKind::train,
                                    .batch = batch,
                                    .clip = true,
                                    .freeze = shape.freeze,
                                    .loss_rows = 0,
                                    .row_groups = 1});
}

inline model::StepGraph graph_of(const std::string& family, std::int64_t batch, std::int64_t layers = 3,
                                 std::int64_t vocabulary = 640) {
  return graph_of_shape({.family = family, .layers = layers, .vocabulary = vocabulary}, batch);
}

inline std::vector<fleet::DeviceProfile> devices_of(std::int64_t count, std::uint64_t seed, double memory = 1e7) {
  fleet::DeviceGroup group;
  group.name = "edge";
  group.count = count;
  group.compute_flops = {5e10, 7e10};
  group.memory_bytes = {memory, 3 * memory};
  group.downlink_bytes = {1e6, 1e7};
  group.uplink_bytes = {5e5, 1e6};
  group.latency_s = {0.001, 0.01};
  return fleet::draw_devices({group}, seed);
}

// A job of a small model, without devices.
inline StepSpec small_spec(const std::string& family, std::int64_t layers, std::int64_t width, std::int64_t batch) {
  StepSpec spec;
  spec.model.family = family;
  spec.model.n_layer = layers;
  spec.model.n_head = spec.model.n_kv_head = 8;
  spec.model.d_model = width;
  spec.model.d_ff = 4 * width;
  spec.model.vocab_size = 5 * width;
  spec.model.seq_len = spec.model.max_pos = 128;
  spec.batch = batch;
  spec.wire = DType::f16;
  spec.plan.server = kWide;
  return spec;
}

// OPT-13B on the 256 devices of the published fleet (inputs/sim/cleave-256.yaml).
inline model::StepGraph published_step() {
  model::ModelConfig config = *model::find_preset("opt-13b");
  config.seq_len = 1024;
  return model::build_step(
      config,
      {.kind = model::StepKind::train, .batch = 128, .clip = true, .freeze = {}, .loss_rows = 0, .row_groups = 1});
}
inline std::vector<fleet::DeviceProfile> published_devices(std::uint64_t seed, std::int64_t count = 256,
                                                           double memory = 1e9) {
  fleet::DeviceGroup group;
  group.name = "edge";
  group.count = count;
  group.compute_flops = {5e12, 7e12};
  group.memory_bytes = {memory, 3 * memory};
  group.downlink_bytes = {1e7, 1e8};
  group.uplink_bytes = {5e6, 1e7};
  return fleet::draw_devices({group}, seed);
}

// Devices that stay for `session` steps and are away for `absence` steps, over so many steps.
inline fleet::ChurnTrace sessions_of(const std::vector<fleet::DeviceProfile>& devices, std::uint64_t seed, Seconds step,
                                     double session, double absence, double steps = 30) {
  fleet::ChurnModel model;
  model.mean_session = step * session;
  model.mean_absence = step * absence;
  model.seed = seed;
  return fleet::draw_churn(model, std::ssize(devices), step * steps);
}

// Of every stage: each chunk came once each way, and each element of the gradient has every sequence in it once.
inline void expect_all_done_once(const StageScheduler& scheduler, const model::StepGraph& graph) {
  const plan::StagePlan& plan = scheduler.plan();
  const plan::StageWork work = plan::with_head_parts(plan::stage_work_of(graph, DType::f16), plan.head_parts);
  const StageTally& tally = scheduler.tally();
  const std::int64_t visits = work.batch * ((work.seq + plan.chunk - 1) / plan.chunk);
  ASSERT_EQ(tally.forward.size(), plan.stages.size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::StageCost cost(work, plan.stages[s].first, plan.stages[s].end, plan.chunk);
    EXPECT_EQ(tally.forward[s], visits) << s;
    EXPECT_EQ(tally.backward[s], cost.is_head() ? 0 : visits) << s;
    const double all = cost.gradient_elements() * static_cast<double>(work.batch);
    EXPECT_NEAR(tally.summed[s], all, 1e-6 * all) << s;
  }
}

// Devices of one memory, with which all of them can be planned for and three quarters cannot.
inline std::vector<fleet::DeviceProfile> with_just_enough_memory(const model::StepGraph& graph,
                                                                 std::vector<fleet::DeviceProfile> devices) {
  const plan::StageWork work = plan::stage_work_of(graph, DType::f16);
  const auto fits = [&](std::int64_t memory, std::size_t count) {
    for (fleet::DeviceProfile& device : devices) device.memory = Bytes(memory);
    return plan::find_stages(work, std::span(devices).first(count), {.server = kWide, .rounds = false}).has_value();
  };
  std::int64_t low = 2'000'000, high = 16'000'000;
  while (high - low > low / 20) {
    const std::int64_t middle = (low + high) / 2;
    (fits(middle, devices.size()) ? high : low) = middle;
  }
  EXPECT_FALSE(fits(high, devices.size() * 3 / 4));
  return devices;
}

// The plan with as many groups of owners as a stage has replicas: each owns all of the gradient.
inline plan::StagePlan owned_by_each_replica(const model::StepGraph& graph, plan::StagePlan plan) {
  const plan::StageWork work = plan::stage_work_of(graph, DType::f16);
  plan.owners.clear();
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::StageCost cost(work, plan.stages[s].first, plan.stages[s].end, plan.chunk);
    plan.groups[s] = std::ssize(plan.stages[s].replicas);
    for (std::int64_t group = 0; group < plan.groups[s]; ++group) {
      plan::GradientOwner owner;
      owner.device = plan.stages[s].replicas[static_cast<std::size_t>(group)].device;
      owner.stage = static_cast<std::int64_t>(s);
      owner.group = group;
      owner.slices = plan::slices_between(work, cost, 0, 1);
      owner.replica = true;
      plan.owners.push_back(owner);
    }
  }
  return plan;
}

}  // namespace cleave::sched
