// share_out(): which devices make the sums of lost owners again. Pure functions.
//
// An owner's sums are lost with it, so X and dY of all its sequences are read again, from the server. Its slices are
// cut into runs, and the sequences of each run are dealt to one or several devices. More runs read more operands; more
// devices to a run send more sums. Devices that are replicas of the stage, or own other slices of it, have or read some
// of the operands anyway, and replicas have the weights. All that is lost at one moment is shared out together, so that
// the last of it is done early, but no earlier than the step needs it: within that time, the sharing that takes least
// of the devices' time is chosen.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "stages/stand_ins.hpp"

namespace cleave::sched::stages {

/// A device that runs sequences at a stage whose sums are lost, or owns other slices of it.
struct Reader {
  std::int32_t device = 0;
  std::int64_t sequences = 0;  ///< sequences of the lost owner that it will run, or be sent, anyway
  bool owns = false;           ///< it owns slices of the stage, and so has memory for OwnerCost::at_work
};

/// The sums that are lost with an owner.
struct LostSums {
  std::int32_t stage = 0;
  const plan::StageCost* cost = nullptr;  ///< of the stage
  std::vector<plan::PieceSlice> slices;
  std::int64_t sequences = 0;
  bool partial = false;         ///< other owners sum the same slices over other sequences
  Seconds ready;                ///< from now, until the last of its sequences has passed
  Seconds opens;                ///< from now, until the first of them has
  std::vector<Reader> readers;  ///< in order of devices
};

/// The role of a stand-in: some of a lost owner's slices, summed over `sequences` of its sequences.
struct OwnerPart {
  std::int32_t device = 0;
  bool replica = false;
  bool shares_room = false;  ///< another owner of the stage on the device holds OwnerCost::at_work for both
  std::vector<plan::PieceSlice> slices;
  plan::OwnerCost cost;
  std::int64_t run = 0;  ///< parts of one run have the same slices, and share the sequences
  std::int64_t sequences = 0;
};

/// Slices cut into `count` runs of about equal numbers of elements, in order; fewer where there are not enough units.
[[nodiscard]] std::vector<std::vector<plan::PieceSlice>> split_slices(const plan::StageWork& work,
                                                                      const plan::StageCost& cost,
                                                                      std::span<const plan::PieceSlice> slices,
                                                                      std::int64_t count, std::int64_t chunk);

/// The slices whose sums are still to be sent when the first `share` of all elements, 0 <= share < 1, is at the server.
/// A unit that is there only in part counts as still to be sent.
[[nodiscard]] std::vector<plan::PieceSlice> slices_after(const plan::StageWork& work, const plan::StageCost& cost,
                                                         std::span<const plan::PieceSlice> slices, double share,
                                                         std::int64_t chunk);

/// The slices between two shares of all elements, from < to: slices_after() `from` without slices_after() `to`.
[[nodiscard]] std::vector<plan::PieceSlice> slices_of_share(const plan::StageWork& work, const plan::StageCost& cost,
                                                            std::span<const plan::PieceSlice> slices, double from,
                                                            double to, std::int64_t chunk);

/// The server's interface, which all parts share: the rate of each direction in bytes a second, and the seconds for
/// which each is busy with what devices already have to do.
struct SharedInterface {
  double out = std::numeric_limits<double>::infinity(), in = out;
  double out_busy = 0, in_busy = 0;
};

struct SharedOut {
  std::vector<std::vector<OwnerPart>> parts;  ///< of each lost owner; empty where nobody has room in time
  Seconds by;                                 ///< from now, until all of them are done
};

/// For each of `lost`: parts that cover its slices and sequences exactly once, in order of runs, each on another
/// device; no parts where no candidates have room, or would be done within `limit` from now. Being done sooner than
/// `enough` from now is of no use. Weights, operands and sums of all parts fit through the interface in the time, after
/// what it has to carry already. Example: 2.7 GB of weights to each of 300 devices take one of 1 Gbit/s 6500 s, however
/// quick the devices are. Deterministic. Complexity: about 20 x lost x candidates; only the 1024 least busy candidates
/// are considered.
[[nodiscard]] SharedOut share_out(const plan::StageWork& work, std::span<const LostSums> lost,
                                  std::span<const Candidate> candidates, Seconds enough, Seconds limit,
                                  std::int64_t chunk, const SharedInterface& interface = {});

/// Deals the sequences of a run to its parts: of each sequence in order, the index of its part. `shares`: how many each
/// part gets. Every part's sequences are spread evenly.
[[nodiscard]] std::vector<std::size_t> deal_sequences(std::span<const std::int64_t> shares);

}  // namespace cleave::sched::stages
