// What a run with real blocks is told: its clock, its ranks, its terms. Device ranks compute under one of three clocks.
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

/// How emulated time and real time belong together (docs/simulator.md).
enum class ClockMode : std::uint8_t { virtual_time, wall, off };
/// `virtual`, `wall` or `off`, as inputs have it.
[[nodiscard]] std::string_view name_of(ClockMode clock);

/// One MPI rank, as ranks.json lists it.
struct RankInfo {
  int rank = 0;
  std::int64_t pid = 0;
  std::string host;
  std::vector<DeviceId> devices;
  std::string absent{};  ///< why the run started without it; empty where it takes part
};

struct FleetTerms {
  ClockMode clock = ClockMode::virtual_time;
  std::string gemm_kernels;             ///< what all ranks must use
  Seconds start_limit{120};             ///< for ranks to answer the greeting
  Seconds patience{10};                 ///< a rank that says nothing for so long loses its blocks until it speaks again
  Seconds orphan_patience{300};         ///< orphan limit: a rank that hears nothing of the server for so long leaves
  sched::Observer* observer = nullptr;  ///< told what the resources are taken for; must outlive the fleet
  Clock* real_time = nullptr;           ///< that ranks are waited for by; null: the host's; must outlive the fleet
};

/// The clock that ranks are waited for by.
[[nodiscard]] Clock& clock_of(const FleetTerms& terms);

}  // namespace cleave::server
