// DeviceHost: what a device rank does from its hello to its farewell.
//
// `app` calls it on every rank but the server's, and on a thread of its own when there is no mpirun. One rank hosts
// several emulated devices; one worker thread computes their tasklets while the calling thread, the only one that
// touches the transport, receives, answers pings and sends results. It knows no clock: the server's time model says how
// long an emulated device would have taken. Between tasklets a device keeps columns of B and, in stages, weights,
// sequences and sums, until the server releases them; and, where it is told to return stale blocks, those.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cleave/base/ids.hpp"
#include "cleave/base/units.hpp"
#include "cleave/comm/transport.hpp"

namespace cleave::device {

/// Settings of a device host.
struct HostOptions {
  int server_rank = 0;
  int threads = 1;                ///< that compute one tasklet together
  std::string host;               ///< host name in the hello; empty: the system's name
  Seconds welcome_patience{120};  ///< how long to wait for the answer to the hello
};

/// Why a host stopped.
enum class HostEnd : std::uint8_t {
  goodbye,      ///< the server said so
  refused,      ///< the server refused this rank, or this rank could not follow the server
  server_gone,  ///< nothing was heard of it for the agreed time, or the transport knows that it is gone
};

/// What a host did.
struct HostReport {
  HostEnd end = HostEnd::goodbye;
  std::string why;                                        ///< for refused and server_gone
  std::vector<DeviceId> devices;                          ///< that were hosted
  std::int64_t computed = 0, refused = 0, malformed = 0;  ///< tasks: computed, refused; frames that were not decoded
  Seconds compute;                                        ///< real time of all computations
};

/// Serves tasklets until the server says goodbye or is gone. Collective: independent, on every rank but the server's.
/// Tasklets are computed in the order in which they come, and a result leaves as soon as it is computed.
/// Errors: EnvironmentError from the transport, the kernels or the system.
[[nodiscard]] HostReport run_device_host(comm::Transport& transport, const HostOptions& options = {});

}  // namespace cleave::device
