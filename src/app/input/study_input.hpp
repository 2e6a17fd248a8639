// The keys of an input that only comparisons read: links between devices, and the section `simulate`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cleave/base/units.hpp"
#include "cleave/config/reader.hpp"
#include "cleave/fleet/links.hpp"
#include "cleave/fleet/profile.hpp"
#include "cleave/rivals/system.hpp"

namespace cleave::app {

/// `fleet.links`: what pairs of devices can do. Ends name a group, or one device by its index.
struct LinkInput {
  std::string from, to;
  fleet::Link link;
  bool one_way = false;
};

/// `fleet.peer_links`.
[[nodiscard]] rivals::PeerLinks read_peer_links(const config::Section& fleet);

/// `simulate`: how systems are compared.
struct SimulateInput {
  std::int64_t steps = 1;
  rivals::LossOptions loss;
  Seconds detection{0.2};
  rivals::DtfmOptions dtfm;
  rivals::LocalStepOptions local_steps;
  rivals::SwarmOptions swarm;
  rivals::GpuOptions gpu;
};

/// `fleet.links`; `groups` have been read. Faults: an end that names nothing.
[[nodiscard]] std::vector<LinkInput> read_links(const config::Section& fleet,
                                                const std::vector<fleet::DeviceGroup>& groups);

[[nodiscard]] SimulateInput read_simulate(const config::Section& in);

/// A link for every ordered pair: later entries over earlier ones, and where none speaks of a pair, what the profiles
/// say: min(uplink, downlink), and the sum of latencies. Empty without entries.
[[nodiscard]] fleet::LinkMatrix link_matrix(const std::vector<LinkInput>& links,
                                            const std::vector<fleet::DeviceGroup>& groups,
                                            const std::vector<fleet::DeviceProfile>& devices);

}  // namespace cleave::app
