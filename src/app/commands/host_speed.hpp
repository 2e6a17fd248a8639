// What this host can do, measured: products on one core and on all, memory, and messages to the other ranks.
//
// `calibrate` calls it. Figures are the best of several short trials, for what else runs on the host can only make them
// worse; latency is a median. Device ranks answer in echo_until_told().
#pragma once

#include <string>
#include <vector>

#include "cleave/base/units.hpp"
#include "cleave/comm/transport.hpp"

namespace cleave::app {

struct HostSpeed {
  int cores = 1;                      ///< that this process may use
  FlopsPerSecond core;                ///< fp32 products on one core, alone
  FlopsPerSecond all;                 ///< the same on every core at once
  BytesPerSecond memory, memory_all;  ///< a[i] = b[i] + s * c[i] over more than the caches hold: one core, all cores
};

/// Takes about two seconds.
[[nodiscard]] HostSpeed measure_host();

struct RankLink {
  int rank = 0;
  std::string host;
  Seconds latency;          ///< one way: half the median round trip of an empty message
  BytesPerSecond down, up;  ///< towards the rank, and back
};

/// Measures the way to every rank, one after the other, through the transport that a run uses (without shared memory,
/// in which there is no way to measure), and lets them go. Errors: EnvironmentError where a rank does not answer.
/// Collective: the server, others in echo_until_told().
[[nodiscard]] std::vector<RankLink> measure_links(comm::Transport& transport);

/// On a device rank: answers the server until told to end, or until it is gone or silent for a minute.
void echo_until_told(comm::Transport& transport, const std::string& host);

}  // namespace cleave::app
