// Stream: one job of a device in the time model: panels that come down, are computed and go up, and memory meanwhile.
//
// The time model sees a tasklet, the weights of a stage, or a chunk of tokens as a stream: bytes, FLOP, memory and
// priority. Callers that submit streams (star.hpp) derive from it, to find their own data when it is answered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cleave/base/units.hpp"
#include "cleave/fleet/profile.hpp"
#include "cleave/timing/panels.hpp"

namespace cleave::timing {

/// The order of streams in a device's queues: urgency, then turn. The least is served first, panel by panel.
using Priority = std::pair<std::int32_t, std::int64_t>;

/// A serial resource of the time model.
enum class Resource : std::uint8_t {
  down,        ///< a device's downlink
  compute,     ///< a device's processor, or the server's when it computes a block itself
  up,          ///< a device's uplink
  server_out,  ///< the server's interface, towards the devices
  server_in,   ///< the server's interface, from the devices
  kernel,      ///< the server's processor, for a server kernel
};

/// What the three resources of a device did for one stream, and for how long. A time of zero: not known.
struct Measured {
  Bytes bytes_down, bytes_up;
  Flops flops;
  Seconds down, compute, up;
};

/// What one device did: busy seconds of each resource, bytes, streams that were completed.
struct Usage {
  Seconds down, compute, up;
  Bytes bytes_down, bytes_up;
  std::int64_t streams = 0;
  Bytes memory_peak;
};

/// A device as it is at one moment: its (declared or learned) rates, and how long each of its three resources is still
/// taken by earlier streams, in seconds from now.
struct DeviceState {
  fleet::DeviceProfile profile;
  Seconds down_busy, compute_busy, up_busy;
};

/// See the file comment. The caller sets the members down to `background`; the star keeps the others.
struct Stream {
  std::int64_t id = -1;        ///< unique among streams under way; answers at one time come in this order
  PanelSequence panels;        ///< those that have not begun to come down
  Bytes bytes_down, bytes_up;  ///< of all panels
  Flops flops;                 ///< of all panels
  Bytes resident;              ///< memory that it takes from its first panel until its answer
  Priority priority;
  std::int64_t uses = -1;  ///< id of a stream that stays on the same device and is sent first; -1: none
  /// The data stay on the device until Star::release(). Nothing goes up, and the stream is not answered.
  bool stays = false;
  /// The processor computes its panels only while no panel of another stream waits. It does not interrupt a panel.
  bool background = false;

  // The star's own; the caller may read `measured` when the stream is answered.
  Measured measured;           // of the panels that have begun
  Panel last;                  // of the panels
  Bytes still_down, still_up;  // bytes of the panels that have not begun to come down, to go up
  Flops still_flops;           // of the panels that have not begun to come down
  Seconds computed;            // its latest panel
  bool arrived = false;        // of one that stays: all of it is down the link
  bool released = false;       // of one that stays: it may be given up
  std::size_t finishes = 0;    // its place among those of its device that are down, but not all up
  std::vector<Tail> tails;     // where the server's interface is limited
  [[nodiscard]] bool begun() const { return panels.made() > 0; }
  [[nodiscard]] bool all_begun() const { return panels.made() == panels.size(); }
};

}  // namespace cleave::timing
