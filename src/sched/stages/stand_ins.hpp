// Who stands in for lost devices in a step of stages: values in, values out.
//
// A stage that lost a replica gets helpers: devices that have work of their own, and memory and links to spare. An
// owner's sums are gone with it: several devices read its sequences again, cut into parts of its slices and of its
// sequences, so that the last of them is done as soon as may be.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cleave/plan/stage_cost.hpp"

namespace cleave::sched::stages {

/// A device that could stand in.
struct Candidate {
  std::int32_t device = 0;
  double memory = 0;  ///< bytes that it can give
  double uplink = 0, downlink = 0, compute = 0;
  double down_busy = 0, up_busy = 0;  ///< seconds that its links have to do for the rest of the step
  std::int64_t roles = 0;             ///< stages of which it is a replica
  bool replica = false;               ///< of the stage that needs somebody
};

/// Memory of a replica with the least number of open sequences.
[[nodiscard]] Bytes least_memory(const plan::StageCost& cost);

/// The best helper of a stage: it lends uplink soon. None where nobody has room, or where its weights would take
/// longer than `patience` to come.
[[nodiscard]] std::optional<Candidate> choose_helper(std::span<const Candidate> candidates, const plan::StageCost& cost,
                                                     Seconds patience);

/// One part of a lost owner's work: `slices` of the stage, summed over every `parts`-th of its sequences.
struct OwnerPart {
  std::int32_t device = 0;
  bool replica = false;
  std::vector<plan::PieceSlice> slices;
  plan::OwnerCost cost;
  std::int64_t part = 0, parts = 1;
};

/// What is lost with an owner.
struct LostSums {
  std::vector<plan::PieceSlice> slices;
  std::int64_t at_once = 0, later = 0;  ///< sequences that have passed, and that have not
  bool partial = false;                 ///< its sums are added to those of others already
  Seconds remaining;                    ///< of the step, as forecast
};

/// Slices cut into `count` runs of about equal numbers of elements, in order; fewer where there are not enough units.
[[nodiscard]] std::vector<std::vector<plan::PieceSlice>> split_slices(const plan::StageWork& work,
                                                                      const plan::StageCost& cost,
                                                                      std::span<const plan::PieceSlice> slices,
                                                                      std::int64_t count, std::int64_t chunk);

/// Parts that fill the lost slices and sequences exactly once, each on a device of its own; none where no candidates
/// have room. Deterministic.
[[nodiscard]] std::vector<OwnerPart> share_out(const plan::StageWork& work, const plan::StageCost& cost,
                                               const LostSums& lost, std::span<const Candidate> candidates,
                                               std::int64_t chunk);

/// Memory of an owner's role beside the weights of the stage, or with those of its slices where it is no replica.
[[nodiscard]] Bytes owner_memory(const plan::StageWork& work, const plan::OwnerCost& cost, bool replica);

}  // namespace cleave::sched::stages
