// ServerSums: sums of gradients that the server makes as a stand-in for an owner that was lost or is late.
//
// It uses the boundaries that an owner is sent, and the worker that devices run (pieces::StageWorker), so its sums are
// those of a device bit for bit.
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
  /// `work` and `numbers` must outlive this object.
  ServerSums(Workspace& work, StageNumbers& numbers) : work_(work), numbers_(numbers) {}

  /// A step begins: forgets the sums of the last one.
  void begin() { workers_.clear(); }
  /// Errand::sum: adds a sequence to an owner's sums; without slices does nothing (the server only watches that owner).
  /// Errand::send_sums: stores the sums. Requires: X and dY of the sequence are at the server. Errors: CheckFailure
  /// where a value is not finite.
  void carry_out(const sched::Tasklet& tasklet);

 private:
  Workspace& work_;
  StageNumbers& numbers_;
  std::map<std::int32_t, std::unique_ptr<pieces::StageWorker>> workers_;  // by owner
};

}  // namespace cleave::server
