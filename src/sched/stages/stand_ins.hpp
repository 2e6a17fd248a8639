// Stand-ins for lost devices in a step of stages. Pure functions.
//
// A stage that lost a replica gets helpers: devices with other work, but with memory and links to spare. Sums of lost
// owners are shared out by share_out.hpp.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "cleave/plan/stage_cost.hpp"

namespace cleave::sched::stages {

/// A device that could stand in, with the work that it has for the rest of the step: times in seconds from now.
struct Candidate {
  struct Held {
    std::int32_t stage = 0;
    double gives = 0;  ///< bytes of the stage's weights that may go: nothing to be done on the device needs them
    double share = 0;  ///< share of the stage's visits that it may expect
  };
  std::int32_t device = 0;
  double memory = 0;  ///< bytes that are free, or lent by its slots; without weights that may go
  double uplink = 0, downlink = 0, compute = 0;         ///< bytes, FLOP a second
  double down_busy = 0, compute_busy = 0, up_busy = 0;  ///< work of its links and processor, without sums_busy
  double sums_busy = 0;                                 ///< work of the uplink: sums that are not complete yet
  /// The parts of down_busy, compute_busy and sums_busy that are for its roles as a stand-in, which come last.
  double down_again = 0, compute_again = 0, sums_again = 0;
  double reads_sent = 0, computes_sent = 0;  ///< the parts of down_again and compute_again that it was sent already
  double last_read = 0;                      ///< time until the last sequence that it sums has passed
  double down_visits = 0;                    ///< the part of down_busy for sequences that pass its stages
  double visits_left = 0;                    ///< time until the last of these has passed
  double own_sums = 0;                       ///< time until the sums that it was planned to make are sent; 0: none
  double own_gaps = 0;                       ///< idle time of its downlink until it has read all for these
  std::int64_t roles = 0;                    ///< stages of which it is a replica
  std::vector<Held> holds;                   ///< stages of which it has the weights, in order
  bool asked_first = false;                  ///< the server, where it is asked before all devices

  /// The server has all weights and boundaries.
  [[nodiscard]] bool is_server() const;
  [[nodiscard]] bool is_replica(std::int32_t stage) const;
  /// Bytes that it has for a part in a stage: `memory`, and weights of other stages that may go.
  [[nodiscard]] double memory_for(std::int32_t stage) const;
};

inline constexpr double kLent = 0.5;      ///< share of a helper's uplink that its new stage may count on
inline constexpr double kDownOfUp = 1.5;  ///< bytes down for a byte up: X, X again and dY for Y and dX

/// A stage that has lost uplink.
struct Shortage {
  std::int32_t stage = 0;
  double sends = 0;                                                      ///< bytes that its replicas still have to send
  double uplink = 0;                                                     ///< of its replicas; 0: it has none
  Seconds patience{std::numeric_limits<double>::infinity()};             ///< time that a helper's weights may take
  Seconds step_left = Seconds(std::numeric_limits<double>::infinity());  ///< until the step is to end
};

/// The best helper of a stage: one that lends much uplink soon. None where nobody has memory, or where weights would
/// take everybody longer than `patience`. Weights and boundaries for the stage fill gaps of the helper's downlink; what
/// exceeds the gaps delays its own sums. Those must still be sent when the step is to end, unless the stage has no
/// replica at all. Example: its own sums would be sent 5 s before the end, and its downlink idles 10 s until then, so
/// weights and boundaries may take 15 s.
[[nodiscard]] std::optional<Candidate> choose_helper(std::span<const Candidate> candidates, const plan::StageCost& cost,
                                                     const Shortage& shortage);

/// Memory of an owner's role; where it is no replica, with the weights of its slices.
[[nodiscard]] Bytes owner_memory(const plan::StageWork& work, const plan::OwnerCost& cost, bool replica);

}  // namespace cleave::sched::stages
