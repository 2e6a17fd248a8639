// ServerSums: sums of gradients that the server makes itself, where a device that had them was lost or is late.
//
// It has the boundaries that an owner is sent and the worker that devices have (pieces::StageWorker), so the sums have
// the bits that a device would return.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "cleave/pieces/stage_worker.hpp"
#include "cleave/sched/fleet.hpp"
#include "stages/stage_numbers.hpp"

namespace cleave::server {

class ServerSums {
 public:
  /// Both must outlive it.
  ServerSums(Workspace& work, StageNumbers& numbers) : work_(work), numbers_(numbers) {}

  /// A step begins: sums of the last one are forgotten.
  void begin() { workers_.clear(); }
  /// Adds a sequence to an owner's sums (Errand::sum with the owner's slices; without: nothing), or puts these in their
  /// place (Errand::send_sums). Requires: X and dY of the sequence are there. Errors: CheckFailure where a value is not
  /// finite.
  void carry_out(const sched::Tasklet& tasklet);

 private:
  Workspace& work_;
  StageNumbers& numbers_;
  std::map<std::int32_t, std::unique_ptr<pieces::StageWorker>> workers_;  // by owner
};

}  // namespace cleave::server
