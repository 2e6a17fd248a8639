// Figures of runs of pieces that are the same whatever the devices are. A search lays out the same runs for many
// settings, so each is worked out once.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cleave/plan/stage_cost.hpp"

namespace cleave::plan::stages {

/// Of an owner of slices of a run that is no replica of it, or of one that is: bytes.
struct OwnerBytes {
  double fixed = 0;    ///< whatever its share is
  double of_all = 0;   ///< of a whole gradient, that grow with its share
  double weights = 0;  ///< of weights whatever its share is
  double whole = 0;    ///< of a whole gradient, with weights that grow with its share
};

/// A piece of a run: its share of the run's gradient, and what is made again of a sequence for any part of that, in
/// FLOP.
struct PieceFigures {
  double share = 0, remade = 0;
};

/// A run as a stage.
struct RunFigures {
  double replica = 0;  ///< bytes that a replica needs at least
  double flops = 0;    ///< stage_flops() where nothing is kept
  double elements = 0, sent = 0,
         sums = 0;      ///< of its gradient, and its bytes as sent by one owner group, and by several
  double operands = 0;  ///< of a sequence that an owner did not run: bytes
  /// FLOP of such a sequence for a share of the gradient that lies within a piece, in the mean: what is made again
  /// whatever the share is, and what grows with it; and of one that the owner ran, for all of it.
  double remade = 0, summed = 0, summed_beside = 0;
  double loaded = 0;       ///< bytes of weights for that slice
  double weights = 0;      ///< bytes
  bool several = false;    ///< its pieces are more than one: a slice may need all of its weights, wherever it lies
  double heads = 0;        ///< share of the weights for two heads that a slice of attention touches at its ends
  Bytes beside;            ///< of a typical slice on a replica, beside its sums
  double rounding = 0;     ///< rounding_bytes()
  OwnerBytes of_owner[2];  ///< of one that is no replica, of one that is
  std::vector<PieceFigures> pieces;  ///< that have a gradient

  /// Of who is no replica: bytes of weights for a share.
  [[nodiscard]] double weights_for(double share) const;
};

class RunBook {
 public:
  /// Requires: the work outlives it.
  explicit RunBook(const StageWork& work) : work_(work) {}
  /// Pieces [first, end).
  [[nodiscard]] const StageCost& cost(std::int64_t first, std::int64_t end, std::int64_t chunk);
  /// Requires: `stage` is of the work, for this chunk.
  [[nodiscard]] const RunFigures& figures(const StageCost& stage, std::int64_t chunk);

 private:
  struct Entry {
    std::optional<StageCost> cost;
    std::optional<RunFigures> figures;
  };
  Entry& entry(std::int64_t first, std::int64_t end, std::int64_t chunk);

  const StageWork& work_;
  std::unordered_map<std::int64_t, std::unordered_map<std::int64_t, Entry>> entries_;  // by chunk, by run
};

}  // namespace cleave::plan::stages
