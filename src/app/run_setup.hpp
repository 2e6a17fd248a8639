// From an input to what a run is made of: devices, churn, trainer options, memory that it will need.
#pragma once

#include <string>
#include <vector>

#include "cleave/fleet/profile.hpp"
#include "cleave/plan/plan.hpp"
#include "cleave/server/trainer.hpp"
#include "input.hpp"

namespace cleave::app {

/// The trainer's options; devices drawn from the input's groups.
/// Errors: InputError for a faulty churn trace.
[[nodiscard]] server::TrainerOptions trainer_options(const Input& input);

/// Memory that a run will take, predicted from shapes.
struct MemoryPlan {
  Bytes parameters;   ///< values, gradients' moments
  Bytes activations;  ///< activations, gradients, logits at their peak
  Bytes messages;     ///< under way to and from devices, at most
  Bytes available;    ///< what this host has free now
  Bytes device_peak;  ///< of the device that a tasklet takes most of
  std::string device_name;
  [[nodiscard]] Bytes server() const { return parameters + activations + messages; }
};

/// Plans every operation once and adds up memory.
/// Errors: InputError when the model does not fit this host, or no device holds the smallest block.
[[nodiscard]] MemoryPlan plan_memory(const Input& input, const server::TrainerOptions& options, int device_ranks);

/// Idle devices with their declared rates, as the planner sees them.
[[nodiscard]] std::vector<plan::DeviceState> idle_devices(const std::vector<fleet::DeviceProfile>& devices);

/// `1.5 MiB`, `3.2 GiB`.
[[nodiscard]] std::string show(Bytes bytes);
/// `12.3 ms`, `4.5 s`, `1 h 20 min`.
[[nodiscard]] std::string show(Seconds time);

}  // namespace cleave::app
