// DeviceHost: what a device rank does from its hello to its farewell.
//
// `app` calls it on every rank but the server's, and on a thread of its own when there is no mpirun. One rank hosts
// several emulated devices; one worker thread computes their tasklets while the calling thread, the only one that
// touches the transport, receives, answers pings and sends what is due. Nothing is kept between tasklets
// (but by a device that is told to answer with stale blocks).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/base/ids.hpp"
#include "cleave/base/units.hpp"
#include "cleave/comm/transport.hpp"

namespace cleave::device {

struct HostOptions {
  int server_rank = 0;
  int threads = 1;                ///< that work on one tasklet
  std::string host;               ///< for the hello; empty: as the system names it
  Seconds welcome_patience{120};  ///< for the answer to the hello
  Clock* clock = nullptr;         ///< nullptr: the host's steady clock
};

/// Why a host stopped.
enum class HostEnd : std::uint8_t {
  goodbye,      ///< the server said so
  refused,      ///< the server refused this rank, or this rank could not follow the server
  server_gone,  ///< nothing was heard of it for the agreed time, or the transport knows that it is gone
};

struct HostReport {
  HostEnd end = HostEnd::goodbye;
  std::string why;                ///< for refused and server_gone
  std::vector<DeviceId> devices;  ///< hosted
  std::int64_t computed = 0, refused = 0, malformed = 0;
  Seconds compute;  ///< real time of all computations
  Seconds late;     ///< largest amount by which a computation missed its modelled end
};

/// Serves tasklets until the server says goodbye or is gone. Collective: independent, on every rank but the server's.
/// Under `virtual` and `off` clocks a result leaves as soon as it is computed. Under `wall` it leaves when the model of
/// the device's downlink, processor and uplink says so:
///   link_i    = max(arrival + delay, link_(i-1)) + down_i / downlink
///   down_i    = max(arrival + delay + nic * share of the bytes so far, link_i) + latency + jitter
///   compute_i = max(down_i, compute_(i-1)) + flops_i / compute
///   up_i      = max(compute_i, up_(i-1)) + up_i / uplink,   sent at up_last + latency + jitter
/// for the panels i of the task's schedule, all rates multiplied by its rate_factor.
/// Errors: EnvironmentError from the transport, the kernels or the system.
[[nodiscard]] HostReport run_device_host(comm::Transport& transport, const HostOptions& options = {});

}  // namespace cleave::device
