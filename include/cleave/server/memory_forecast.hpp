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

/// Memory of one run, by kind. Freed blocks are kept for later blocks of the same kind, so the memory of a kind stays
/// at its peak.
struct MemoryForecast {
  Bytes process;      ///< this process as the simulated step ended: program, libraries, corpus, the scheduler's books
  Bytes runtime;      ///< what code and libraries take besides, once the run goes on
  Bytes records;      ///< what the caller records of the run and writes at its end; set by the caller
  Bytes parameters;   ///< values, and two moments of those that are trained
  Bytes history;      ///< earlier states, for verify.rollback
  Bytes activations;  ///< peak of activations, gradients and logits
  Bytes sums;         ///< peak of partial sums of products whose depth is cut
  Bytes pool;         ///< peak of activations and sums together
  Bytes messages;     ///< tasks and results under way: the sum of the peaks of each kind
  Bytes device_peak;  ///< peak of the device that takes most, with all its tasklets
  std::string device_name;    ///< name of that device
  Seconds step;               ///< emulated time of the simulated step
  std::int64_t tasklets = 0;  ///< of that step

  /// Memory of the server process.
  [[nodiscard]] Bytes server() const { return process + needed(); }
  /// The part of server() that is not taken yet.
  [[nodiscard]] Bytes needed() const { return runtime + records + parameters + history + pool + messages; }
};

/// Parameters and activations alone, from the graph: a lower bound of the memory, without a simulated step. The other
/// members are zero.
[[nodiscard]] MemoryForecast forecast_tensors(const TrainerOptions& options);

/// The device ranks of a run, rank 1 first. One that shares memory with the server reads large messages, and weights of
/// stages in fp32, where the server has them. Requires: at least one.
struct DeviceRanks {
  std::vector<bool> shares_memory;  ///< by rank, from rank 1 on

  /// `count` ranks that are sent everything.
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
