// The star, and a shorter way to the same digits.
//
// Where every device's memory holds all of its streams, what comes down and what goes up are followed one after the
// other (two_passes.hpp); otherwise, and where that does not know the order of two events, the star itself is asked.
#include "cleave/timing/alone.hpp"

#include <algorithm>
#include <vector>

#include "alone/two_passes.hpp"
#include "cleave/timing/star.hpp"

namespace cleave::timing {

namespace {

// By index of device: how many streams, and what memory they take together.
struct Load {
  std::int64_t streams = 0;
  Bytes resident;
};

Seconds time_in_star(std::span<const Submission> submissions, std::span<const DeviceState> states,
                     const fleet::ServerProfile& server) {
  // Devices in the order in which streams name them first.
  std::vector<fleet::DeviceProfile> profiles;
  std::vector<const DeviceState*> used;
  std::vector<std::size_t> index(states.size(), states.size());
  for (const Submission& submission : submissions) {
    std::size_t& d = index[submission.device];
    if (d < states.size()) continue;
    d = used.size();
    used.push_back(&states[submission.device]);
    profiles.push_back(used.back()->profile);
    profiles.back().jitter = Seconds(0);
  }
  Star star(std::move(profiles), server);
  for (std::size_t d = 0; d < used.size(); ++d) {
    star.occupy(d, used[d]->down_busy, used[d]->compute_busy, used[d]->up_busy);
  }
  std::vector<Stream> streams(submissions.size());
  for (std::size_t s = 0; s < streams.size(); ++s) {
    Stream& stream = streams[s];
    stream.id = static_cast<std::int64_t>(s);
    stream.panels = submissions[s].panels;
    stream.resident = submissions[s].resident;
    for (PanelSequence panels = stream.panels; panels.made() < panels.size();) {
      const Panel panel = panels.next();
      stream.bytes_down += panel.down;
      stream.bytes_up += panel.up;
      stream.flops = stream.flops + panel.flops;
    }
    star.submit(index[submissions[s].device], stream);
  }
  Seconds last{0};
  while (star.next_answer() != nullptr) last = star.now();
  return last;
}

}  // namespace

Seconds time_alone(std::span<const Submission> streams, std::span<const DeviceState> devices,
                   const fleet::ServerProfile& server) {
  std::vector<Load> loads(devices.size());
  for (const Submission& stream : streams) {
    ++loads[stream.device].streams;
    loads[stream.device].resident += stream.resident;
  }
  const auto crowded = [&](const Submission& stream) {
    const Load& load = loads[stream.device];
    return load.streams > 1 && load.resident > devices[stream.device].profile.memory;
  };
  if (!std::ranges::any_of(streams, crowded)) {
    if (const std::optional<Seconds> time = two_passes(streams, devices, server)) return *time;
  }
  return time_in_star(streams, devices, server);
}

}  // namespace cleave::timing
