// The memory that a run will take, predicted before it starts, and the memory that this process has taken.
//
// plan_memory() runs one undisturbed step through the scheduler and the simulated fleet and keeps the books that the
// server's executor keeps of real memory, so that the figure follows the order in which operations really run.
// docs/models.md states what a parameter and an activation cost.
#pragma once

#include <string>

#include "cleave/server/trainer.hpp"
#include "input/input.hpp"

namespace cleave::app {

/// Memory of one run. The parts need not peak at the same moment: server() is less than or equal to their sum.
struct MemoryPlan {
  Bytes process;      ///< of the server process before parameters are made: program, libraries, corpus
  Bytes parameters;   ///< values, and two moments of those that are trained
  Bytes activations;  ///< activations, gradients, logits, at most
  Bytes sums;         ///< partial sums of products whose depth is cut, at most
  Bytes messages;     ///< under way to and from devices, at most
  Bytes peak;         ///< activations, sums and messages together, at most
  Bytes available;    ///< what this host has free now
  Bytes device_peak;  ///< of the device that takes most, with all tasklets in its hands
  std::string device_name;
  [[nodiscard]] Bytes server() const { return process + parameters + peak; }
};

/// Errors: InputError when the model does not fit this host, or no device holds the smallest block.
[[nodiscard]] MemoryPlan plan_memory(const Input& input, const server::TrainerOptions& options, int device_ranks);

/// Resident memory of this process: now, and at its highest so far. Zero where the system does not say.
struct ProcessMemory {
  Bytes now, peak;
};
[[nodiscard]] ProcessMemory measure_process_memory();

}  // namespace cleave::app
