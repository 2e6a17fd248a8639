// Who stands in for lost devices in a step of stages: values in, values out.
//
// A stage that lost a replica gets helpers: devices that have work of their own, and memory and links to spare. What
// lost owners had summed is shared out by share_out.hpp.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "cleave/plan/stage_cost.hpp"

namespace cleave::sched::stages {

/// A device that could stand in.
struct Candidate {
  struct Held {
    std::int32_t stage = 0;
    double gives = 0;  ///< bytes of its weights that may go, since nobody needs them there any more
    double share = 0;  ///< of the stage's visits that it may expect
  };
  std::int32_t device = 0;
  double memory = 0;  ///< bytes that it can give, beside weights that may go
  double uplink = 0, downlink = 0, compute = 0;
  double down_busy = 0, compute_busy = 0, up_busy = 0;       ///< seconds that it has to do for the rest of the step
  double sums_busy = 0;                                      ///< of the uplink, for sums that are not complete yet
  double down_again = 0, compute_again = 0, sums_again = 0;  ///< of those, what it stands in for: it comes last
  double reads_sent = 0, computes_sent = 0;                  ///< of what it stands in for, and was sent
  double last_read = 0;                                      ///< until the last operand of those is there
  double down_visits = 0;                                    ///< of down_busy: what sequences need that pass
  double visits_left = 0;                                    ///< until the last of them has passed
  double own_sums = 0;                                       ///< until what it was planned to own is sent; 0: nothing
  double own_gaps = 0;                                       ///< of the downlink, until it has read all for that
  std::int64_t roles = 0;                                    ///< stages of which it is a replica
  std::vector<Held> holds;                                   ///< weights
  bool asked_first = false;                                  ///< the server: before all devices

  /// It has all weights and boundaries.
  [[nodiscard]] bool is_server() const;
  [[nodiscard]] bool is_replica(std::int32_t stage) const;
  /// Bytes that it can give for a part in a stage.
  [[nodiscard]] double memory_for(std::int32_t stage) const;
};

/// Memory of a replica with the least number of open sequences.
[[nodiscard]] Bytes least_memory(const plan::StageCost& cost);

inline constexpr double kLent = 0.5;      ///< share of a helper's uplink that its new stage may count on
inline constexpr double kDownOfUp = 1.5;  ///< bytes down a byte up: X, X again and dY for X and dX

/// A stage that lacks uplink.
struct Shortage {
  std::int32_t stage = 0;
  double sends = 0;                                                      ///< bytes that its replicas still owe
  double uplink = 0;                                                     ///< of those; 0: it has none
  Seconds patience{std::numeric_limits<double>::infinity()};             ///< that a helper's weights may take
  Seconds step_left = Seconds(std::numeric_limits<double>::infinity());  ///< until the step is to end
};

/// The best helper of a stage: it lends uplink soon. None where nobody has room, or where its weights would take longer
/// than `patience` to come. What comes for the stage fills gaps of a helper's downlink, and beyond those holds up what
/// its own sums read: unless nobody else holds the stage, they must be sent when the step is to end. Example: its sums
/// are sent 5 s before that, with gaps of 10 s until then; weights and boundaries may take it 15 s.
[[nodiscard]] std::optional<Candidate> choose_helper(std::span<const Candidate> candidates, const plan::StageCost& cost,
                                                     const Shortage& shortage);

/// Memory of an owner's role beside the weights of the stage, or with those of its slices where it is no replica.
[[nodiscard]] Bytes owner_memory(const plan::StageWork& work, const plan::OwnerCost& cost, bool replica);

}  // namespace cleave::sched::stages
