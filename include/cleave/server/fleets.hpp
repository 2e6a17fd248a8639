// The fleets with real numbers: blocks computed by device ranks, under one of three clocks.
//
//   virtual  modelled completion times order the events: a sched::SimulatedFleet says what happens next, and the real
//            block is waited for before the event is passed on. Time is what `simulate` says.
//   wall     the same, and no event is passed on before its time has come in real time: a run takes as long as it says,
//            or tells by which factor it was dilated because the host could not keep up.
//   off      as fast as the host can; events in order of arrival.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/shapes.hpp"
#include "cleave/comm/handshake.hpp"
#include "cleave/comm/transport.hpp"
#include "cleave/fleet/churn.hpp"
#include "cleave/fleet/profile.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/sched/observer.hpp"

namespace cleave::server {

class Executor;
class Pace;

/// How emulated time and real time belong together (docs/simulator.md).
enum class ClockMode : std::uint8_t { virtual_time, wall, off };

/// One MPI rank, as ranks.json lists it.
struct RankInfo {
  int rank = 0;
  std::int64_t pid = 0;
  std::string host;
  std::vector<DeviceId> devices;
};

struct FleetTerms {
  ClockMode clock = ClockMode::virtual_time;
  DType wire = DType::f32;
  std::string gemm_kernels;      ///< what all ranks must use
  std::uint64_t seed = 0;        ///< of jitter
  Seconds start_limit{120};      ///< for ranks to answer the greeting
  Seconds patience{10};          ///< a rank that says nothing for so long loses its blocks until it speaks again
  Seconds orphan_patience{300};  ///< a rank that hears nothing of the server for so long leaves
  fleet::ServerProfile server;
  fleet::ChurnTrace churn;
  sched::Observer* observer = nullptr;  ///< told what the resources are taken for; must outlive the fleet
};

/// A fleet whose devices live behind a transport. Collective: rank 0 only.
class RankFleet : public sched::Fleet {
 public:
  [[nodiscard]] virtual const std::vector<RankInfo>& ranks() const = 0;
  /// Ends the device ranks. Returns those that did not say farewell: with any, MPI must not be finalized.
  [[nodiscard]] virtual std::vector<RankInfo> say_goodbye(Seconds at_most) = 0;
  /// How real time follows the model; null for clocks other than `wall`.
  [[nodiscard]] virtual const Pace* pace() const = 0;
};

/// Makes the fleet for `terms.clock`. `transport` has this process as rank 0; `executor` and `transport` must outlive
/// it. Errors: EnvironmentError when a rank refuses or does not answer.
[[nodiscard]] std::unique_ptr<RankFleet> make_rank_fleet(comm::Transport& transport, Executor& executor,
                                                         std::vector<fleet::DeviceProfile> devices,
                                                         const FleetTerms& terms);

/// A fleet without devices: the server computes every block itself. For `generate` and other single-process work.
[[nodiscard]] std::unique_ptr<sched::Fleet> make_local_fleet(Executor& executor, const fleet::ServerProfile& server);

}  // namespace cleave::server
