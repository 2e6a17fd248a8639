// A pipeline whose stages have several replicas, in virtual time: each micro-batch goes to the replica that is expected
// to be done with it first, and back through the same ones.
//
// A device has a processor, an uplink and a downlink, all serial. It prefers a backward pass that is ready to a forward
// one. It is given a micro-batch only while fewer than `room` of those given to it await their backward pass; where no
// replica of a stage has room, the micro-batch waits with its sender. So the last stage always goes on, and nobody
// waits for ever. Source: Ryabinin et al. 2023 (SWARM), section 3.2 (turns in proportion to throughput), with expected
// times in place of its moving averages of response times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "network.hpp"

namespace cleave::rivals {

/// A replica of a stage. Times are per sequence.
struct RoutedDevice {
  std::size_t device = 0;  ///< position in the network
  std::size_t stage = 0;
  double forward_s = 0, backward_s = 0;
  std::int64_t room = 1;  ///< micro-batches in flight, at least 1
};

/// Who is expected to be done with a micro-batch first.
enum class Routing : std::uint8_t {
  /// Whose processor, uplink and downlink can do first what each of them still has to do, there and back. Where links
  /// take longer than passes, they are what is shared out.
  by_all_resources,
  /// Who computes its forward pass first. Where pairs of devices are far from each other, it stays near.
  by_forward_pass,
};

struct RoutedTimes {
  double end_s = 0;    ///< its last pass is computed
  double quiet_s = 0;  ///< and its last transfer is off its links
  double compute_s = 0, up_s = 0, down_s = 0;
  double bytes_up = 0, bytes_down = 0;  ///< headers included
  std::int64_t most_in_flight = 0;
};

/// Runs the micro-batches (numbers of sequences). `boundary_bytes[s]`: that a sequence takes from stage s to s + 1, and
/// its gradient back. Deterministic; ties go to the first replica.
/// Requires: every stage 0 ... has a replica, boundary_bytes has one entry less than there are stages.
[[nodiscard]] std::vector<RoutedTimes> run_routed(const Network& network, std::span<const RoutedDevice> devices,
                                                  std::span<const double> boundary_bytes,
                                                  std::span<const std::int64_t> micro_batches,
                                                  Routing routing = Routing::by_all_resources);

}  // namespace cleave::rivals
