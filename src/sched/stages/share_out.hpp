// Sums of lost owners shared out to those who make them again: values in, values out.
//
// An owner's sums are gone with it, so X and dY of its sequences are read again, from the server. Its slices are cut
// into runs, and each run's sequences are dealt to several devices: more runs read more, more devices to a run send
// more. Devices that own other slices of the stage, or are its replicas, read some of the sequences anyway, or have run
// them, and need no weights. What is lost at one time is shared out together, so that the last of it is done as soon as
// may be, and no sooner than the step needs it: until then, as few seconds of devices are taken as can be.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "stages/stand_ins.hpp"

namespace cleave::sched::stages {

/// What a device has of a stage whose sums are lost.
struct Reader {
  std::int32_t device = 0;
  std::int64_t sequences = 0;  ///< of the lost ones, that it will run, or be sent for another owner's part
  bool owns = false;           ///< it has such a part, and so room for what is at work on a sequence
};

/// What is lost with an owner.
struct LostSums {
  std::int32_t stage = 0;
  const plan::StageCost* cost = nullptr;  ///< of the stage
  std::vector<plan::PieceSlice> slices;
  std::int64_t sequences = 0;
  bool partial = false;         ///< its sums are added to those of others already
  Seconds ready;                ///< from now, until the last of its sequences has passed
  Seconds opens;                ///< and until the first has
  std::vector<Reader> readers;  ///< in order of devices
};

/// Some of a lost owner's slices, summed over so many of its sequences.
struct OwnerPart {
  std::int32_t device = 0;
  bool replica = false;
  bool shares_room = false;  ///< another part there has room for what is at work on a sequence
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

/// The slices whose sums are not at the server when a share of them is, in order: a unit that is cut is sent again.
/// `share` is below 1.
[[nodiscard]] std::vector<plan::PieceSlice> slices_after(const plan::StageWork& work, const plan::StageCost& cost,
                                                         std::span<const plan::PieceSlice> slices, double share,
                                                         std::int64_t chunk);

/// What slices_after() leaves out between two shares: together with what comes before `from` it is all up to `to`.
[[nodiscard]] std::vector<plan::PieceSlice> slices_of_share(const plan::StageWork& work, const plan::StageCost& cost,
                                                            std::span<const plan::PieceSlice> slices, double from,
                                                            double to, std::int64_t chunk);

/// The server's interface, which all parts share: each direction in bytes a second, and for how long it is taken by
/// what devices have in hand.
struct SharedInterface {
  double out = std::numeric_limits<double>::infinity(), in = out;
  double out_busy = 0, in_busy = 0;
};

struct SharedOut {
  std::vector<std::vector<OwnerPart>> parts;  ///< of each that was lost
  Seconds by;                                 ///< all of them are done, from now
};

/// For each of `lost` parts that fill its slices and sequences exactly once, in order of runs, each on a device of its
/// own; none where no candidates have room, or all would be done after `limit`. `enough`: from now; being done sooner
/// is of no use. Weights, operands and sums of all parts pass the interface in that time, after what is in hand.
/// Example: 2.7 GB of weights to each of 300 devices take one of 1 Gbit/s 6500 s, however quick the devices are.
/// Deterministic. Complexity: about 20 x lost x candidates, of which the least busy 1024 are looked at.
[[nodiscard]] SharedOut share_out(const plan::StageWork& work, std::span<const LostSums> lost,
                                  std::span<const Candidate> candidates, Seconds enough, Seconds limit,
                                  std::int64_t chunk, const SharedInterface& interface = {});

/// Which part of a run sums which of its sequences: in proportion to what each part takes, evenly along the list.
[[nodiscard]] std::vector<std::size_t> deal_sequences(std::span<const std::int64_t> shares);

}  // namespace cleave::sched::stages
