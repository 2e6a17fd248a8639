// A small model, a small fleet and a server that nothing waits for, for tests of steps in stages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cleave/fleet/profile.hpp"
#include "cleave/model/family.hpp"

namespace cleave::sched {

inline const fleet::ServerProfile kWide{fleet::kUnlimitedRate, fleet::kUnlimitedRate, FlopsPerSecond(1e12),
                                        BytesPerSecond(1e11)};

inline model::StepGraph graph_of(const std::string& family, std::int64_t batch, std::int64_t layers = 3) {
  model::ModelConfig config;
  config.family = family;
  config.n_layer = layers;
  config.n_head = config.n_kv_head = 8;
  config.d_model = 128;
  config.d_ff = 512;
  config.vocab_size = 640;
  config.seq_len = config.max_pos = 384;
  return model::build_step(
      config,
      {.kind = model::StepKind::train, .batch = batch, .clip = true, .freeze = {}, .loss_rows = 0, .row_groups = 1});
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

}  // namespace cleave::sched
