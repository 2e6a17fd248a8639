// The memory that a run will take on the server, predicted before it starts.
//
// forecast_memory() runs one undisturbed step through the scheduler and the simulated fleet, as the trainer schedules
// it, and counts with the same window, ranks and lifetimes of tensors as the exchange and the tensor store, so that the
// figure follows the order in which operations really run. docs/models.md states what a parameter and an activation
// cost.
#pragma once

#include <string>
#include <vector>

#include "cleave/base/units.hpp"
#include "cleave/server/trainer.hpp"

namespace cleave::server {

/// Memory of one run. Blocks are kept for the next of their kind when they are given back, so that memory of each kind
/// stays at the most that was ever in use, whenever that was.
struct MemoryForecast {
  Bytes process;     ///< of this process as the simulated step ended: program, libraries, corpus, the scheduler's books
  Bytes runtime;     ///< what code and libraries take once the run goes on
  Bytes records;     ///< what the caller records of the run and writes at its end; the caller's to say
  Bytes parameters;  ///< values, and two moments of those that are trained
  Bytes history;     ///< earlier states, for verify.rollback
  Bytes activations;  ///< activations, gradients, logits, at most
  Bytes sums;         ///< partial sums of products whose depth is cut, at most
  Bytes pool;         ///< activations and sums together, at most
  Bytes messages;     ///< tasks and results under way, each kind at most
  Bytes device_peak;  ///< of the device that takes most, with all tasklets in its hands
  std::string device_name;
  Seconds step;               ///< the simulated time of the step that was counted along
  std::int64_t tasklets = 0;  ///< of that step

  [[nodiscard]] Bytes server() const { return process + needed(); }
  /// What is still to be taken: `process` is already.
  [[nodiscard]] Bytes needed() const { return runtime + records + parameters + history + pool + messages; }
};

/// Parameters and activations alone, from the graph: a lower bound of the rest, at once.
[[nodiscard]] MemoryForecast forecast_tensors(const TrainerOptions& options);

/// The device ranks of a run, rank 1 first. One that shares memory with the server reads large messages, and weights of
/// stages in fp32, where the server has them. Requires: at least one.
struct DeviceRanks {
  std::vector<bool> shares_memory;

  [[nodiscard]] static DeviceRanks sent_all(int count) {
    return {std::vector<bool>(static_cast<std::size_t>(count), false)};
  }
  [[nodiscard]] int count() const { return static_cast<int>(shares_memory.size()); }
};

/// The whole forecast. Errors: InputError when no device holds the smallest block.
[[nodiscard]] MemoryForecast forecast_memory(const TrainerOptions& options, const DeviceRanks& ranks);

/// Resident memory of this process: now, and at its highest so far. Zero where the system does not say.
struct ProcessMemory {
  Bytes now, peak;
};
[[nodiscard]] ProcessMemory measure_process_memory();

}  // namespace cleave::server
