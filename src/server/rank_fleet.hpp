// The fleets with real blocks: one behind a transport, one that is the server itself.
//
// The trainer makes one of them and works with it as the scheduler does, through sched::Fleet.
#pragma once

#include <memory>
#include <vector>

#include "cleave/comm/transport.hpp"
#include "cleave/fleet/profile.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/sched/step_spec.hpp"
#include "cleave/server/fleets.hpp"

namespace cleave::server {

class Executor;
class Pace;

/// A fleet whose devices live behind a transport. Collective: rank 0 only.
class RankFleet : public sched::Fleet {
 public:
  [[nodiscard]] virtual const std::vector<RankInfo>& ranks() const = 0;
  /// Ends the device ranks. Returns those that did not say farewell: with any, MPI must not be finalized.
  [[nodiscard]] virtual std::vector<RankInfo> say_goodbye(Seconds at_most) = 0;
  /// How real time follows the model; null for clocks other than `wall`.
  [[nodiscard]] virtual const Pace* pace() const = 0;
};

/// Makes the fleet of `spec` for `terms.clock`. `transport` has this process as rank 0; `executor` and `transport` must
/// outlive it. A rank that refuses, dies or does not answer in time is left out, and its devices are gone. Errors:
/// EnvironmentError when no rank takes part.
[[nodiscard]] std::unique_ptr<RankFleet> make_rank_fleet(comm::Transport& transport, Executor& executor,
                                                         const sched::StepSpec& spec, const FleetTerms& terms);

/// A fleet without devices: the server computes every block itself. For `generate` and other single-process work.
[[nodiscard]] std::unique_ptr<sched::Fleet> make_local_fleet(Executor& executor, const fleet::ServerProfile& server);

}  // namespace cleave::server
