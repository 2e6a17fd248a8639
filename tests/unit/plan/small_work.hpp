// Work of a small model, for layouts of it in stages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cleave/fleet/profile.hpp"
#include "cleave/model/family.hpp"
#include "cleave/plan/stage_plan.hpp"
#include "unit/small_model.hpp"

namespace cleave::plan {

struct SmallModel {
  std::string family = "opt";
  std::int64_t layers = 2, width = 128;
};

/// Sequences of 256 tokens, fp16; the vocabulary is five times the width.
inline StageWork small_work(const SmallModel& of, std::int64_t batch) {
  const model::ModelConfig config = model::small_model(of.family, of.layers, of.width, 5 * of.width, 256);
  model::StepOptions options;
  options.kind = model::StepKind::train;
  options.batch = batch;
  options.row_groups = 1;
  return stage_work_of(model::build_step(config, options), DType::f16);
}

/// Numbered from 0; downlinks and processors that take next to no time.
inline std::vector<fleet::DeviceProfile> alike_devices(std::int64_t count) {
  std::vector<fleet::DeviceProfile> devices;
  for (std::int32_t i = 0; i < count; ++i) {
    fleet::DeviceProfile& device = devices.emplace_back();
    device.id = DeviceId(i);
    device.compute = FlopsPerSecond(1e15);
    device.downlink = BytesPerSecond(1e12);
    device.uplink = BytesPerSecond(1e6);
    device.memory = Bytes(4'000'000'000);
  }
  return devices;
}

}  // namespace cleave::plan
