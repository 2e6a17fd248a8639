// Small studies and fleets for the tests of this component.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cleave/base/random.hpp"
#include "cleave/rivals/registry.hpp"
#include "cleave/rivals/system.hpp"
#include "collective.hpp"
#include "workload.hpp"

namespace cleave::rivals {

inline fleet::DeviceProfile make_device(std::int64_t id, double compute, double downlink, double uplink,
                                        double latency_s = 0, std::int64_t memory = 1'000'000'000'000) {
  fleet::DeviceProfile device;
  device.id = DeviceId(id);
  device.compute = FlopsPerSecond(compute);
  device.memory = Bytes(memory);
  device.downlink = BytesPerSecond(downlink);
  device.uplink = BytesPerSecond(uplink);
  device.latency = Seconds(latency_s);
  return device;
}

/// `count` equal devices.
inline std::vector<fleet::DeviceProfile> equal_devices(std::int64_t count, double compute, double rate,
                                                       double latency_s = 0, std::int64_t memory = 1'000'000'000'000) {
  std::vector<fleet::DeviceProfile> devices;
  for (std::int64_t d = 0; d < count; ++d) devices.push_back(make_device(d, compute, rate, rate, latency_s, memory));
  return devices;
}

/// Devices of unlike rates, links and memory: a pure function of the seed.
inline std::vector<fleet::DeviceProfile> unlike_devices(std::int64_t count, std::uint64_t seed, double memory_low = 1e9,
                                                        double memory_high = 1e9) {
  const Random random(seed, Purpose::test, 7);
  std::uint64_t next = 0;
  const auto draw = [&](double low, double high) { return low + (high - low) * random.uniform(next++); };
  std::vector<fleet::DeviceProfile> devices;
  for (std::int64_t d = 0; d < count; ++d) {
    const double compute = draw(1e9, 9e9), down = draw(1e6, 9e6), up = draw(5e5, 5e6), latency_s = draw(0, 0.02);
    devices.push_back(
        make_device(d, compute, down, up, latency_s, static_cast<std::int64_t>(draw(memory_low, memory_high))));
  }
  return devices;
}

/// A GPT-2 of a few hundred thousand parameters.
inline model::ModelConfig small_model(std::int64_t layers = 4) {
  model::ModelConfig config;
  config.family = "gpt2";
  config.n_layer = layers;
  config.n_head = config.n_kv_head = 4;
  config.d_model = 64;
  config.d_ff = 256;
  config.vocab_size = 96;
  config.seq_len = config.max_pos = 32;
  return config;
}

inline void give_memory(StudyInput& study, double bytes) {
  for (fleet::DeviceProfile& device : study.devices) device.memory = Bytes(static_cast<std::int64_t>(bytes));
}

inline StudyInput small_study(std::vector<fleet::DeviceProfile> devices, std::int64_t batch = 8) {
  StudyInput study;
  study.model = small_model();
  study.batch = batch;
  study.devices = std::move(devices);
  study.layout = {sched::Layout::tiles, 1};
  study.dtfm.population = 20;
  study.dtfm.trials = 50;
  return study;
}

inline SystemReport run(const std::string& name, const StudyInput& study) {
  const std::unique_ptr<System> system = find_system(name);
  EXPECT_NE(system, nullptr) << name;
  return system->simulate(study);
}

inline Workload workload_of(const StudyInput& study) { return describe_workload(study.model, study.batch, study.wire); }

/// One all-reduce of `bytes` in a ring of all devices.
inline double ring_s(const StudyInput& study, double bytes) {
  const Network network(study.devices, study.links);
  std::vector<std::size_t> all(study.devices.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return ring_all_reduce(network, all, bytes).time_s;
}

}  // namespace cleave::rivals
