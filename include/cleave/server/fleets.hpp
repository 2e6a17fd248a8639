// Settings of a run with real blocks: its clock, its ranks, its limits. Device ranks compute under one of three clocks.
//
//   virtual  modelled completion times order the events: a sched::SimulatedFleet says what happens next, and the real
//            block is waited for before the event is passed on. Time is what `simulate` says.
//   wall     the same, and no event is passed on before its time has come in real time: a run takes as long as it says,
//            or tells by which factor it was dilated because the host could not keep up.
//   off      as fast as the host can; events in order of arrival.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/base/ids.hpp"
#include "cleave/comm/handshake.hpp"
#include "cleave/sched/observer.hpp"

namespace cleave::server {

/// The relation of emulated time to real time; see the file comment (docs/simulator.md).
enum class ClockMode : std::uint8_t { virtual_time, wall, off };
/// `virtual`, `wall` or `off`, as inputs have it.
[[nodiscard]] std::string_view name_of(ClockMode clock);

/// One MPI rank, as ranks.json lists it.
struct RankInfo {
  int rank = 0;
  std::int64_t pid = 0;
  std::string host;
  std::vector<DeviceId> devices;
  std::string absent{};   ///< why the run started without it; empty where it takes part
  std::string address{};  ///< Transport::address(): what it says itself is for people to read
};

/// Settings of a fleet with real blocks. Times are real time.
struct FleetTerms {
  ClockMode clock = ClockMode::virtual_time;
  std::string gemm_kernels;             ///< BLIS kernels that all ranks must use
  Seconds start_limit{120};             ///< ranks must answer the welcome within this time
  Seconds patience{10};                 ///< a rank silent for so long loses its blocks until it is heard again
  Seconds orphan_patience{300};         ///< orphan limit: a rank that hears nothing of the server for so long leaves
  sched::Observer* observer = nullptr;  ///< told of uses of resources; null: nobody; must outlive the fleet
  Clock* real_time = nullptr;           ///< for waiting for ranks; null: the host's clock; must outlive the fleet
};

/// terms.real_time, or the host's clock where that is null.
[[nodiscard]] Clock& clock_of(const FleetTerms& terms);

}  // namespace cleave::server
