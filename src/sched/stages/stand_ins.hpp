// Who stands in for lost devices in a step of stages: values in, values out.
//
// A stage that lost a replica gets helpers: devices that have work of their own, and memory and links to spare. What
// lost owners had summed is shared out by share_out.hpp.
#pragma once

#include <cstdint>
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
  double last_read = 0;                                      ///< until the last operand of those is there
  double down_visits = 0;                                    ///< of down_busy: what sequences need that pass
  double visits_left = 0;                                    ///< until the last of them has passed
  std::int64_t roles = 0;                                    ///< stages of which it is a replica
  std::vector<Held> holds;                                   ///< weights

  [[nodiscard]] bool is_replica(std::int32_t stage) const;
  /// Bytes that it can give for a part in a stage.
  [[nodiscard]] double memory_for(std::int32_t stage) const;
};

/// Memory of a replica with the least number of open sequences.
[[nodiscard]] Bytes least_memory(const plan::StageCost& cost);

/// The best helper of a stage: it lends uplink soon. None where nobody has room, or where its weights would take
/// longer than `patience` to come.
[[nodiscard]] std::optional<Candidate> choose_helper(std::span<const Candidate> candidates, const plan::StageCost& cost,
                                                     std::int32_t stage, Seconds patience);

/// Memory of an owner's role beside the weights of the stage, or with those of its slices where it is no replica.
[[nodiscard]] Bytes owner_memory(const plan::StageWork& work, const plan::OwnerCost& cost, bool replica);

}  // namespace cleave::sched::stages
