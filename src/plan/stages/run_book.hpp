// Figures of runs of pieces that do not depend on the devices. A search lays out the same runs for many settings, so
// each figure is computed once.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cleave/plan/stage_cost.hpp"

namespace cleave::plan::stages {

/// Bytes that an owner of slices of a run takes, by its share x of the gradient: fixed + of_all x, and weights.
struct OwnerBytes {
  double fixed = 0;    ///< that do not depend on its share
  double of_all = 0;   ///< that grow with its share: for the whole gradient
  double weights = 0;  ///< weights that do not depend on its share
  double whole = 0;    ///< of_all, and weights that grow with its share
};

/// A piece of a run.
struct PieceFigures {
  double share = 0;       ///< of the run's gradient
  double recomputed = 0;  ///< FLOP of recomputation for a sequence, for any part of the piece's gradient
};

/// Figures of a run as a stage. Bytes and FLOP; "of a sequence" where it says so.
struct RunFigures {
  double replica = 0;   ///< bytes that a replica needs at least
  double flops = 0;     ///< stage_flops() where no sequence is kept
  double elements = 0;  ///< of its gradient
  double sent = 0;      ///< bytes of its gradient as one owner group sends it
  double sums = 0;      ///< bytes of its gradient as one of several owner groups sends it
  double operands = 0;  ///< bytes of a sequence that an owner did not run
  /// FLOP of such a sequence, on average over slices that lie within one piece: recomputation, and sums of the whole
  /// gradient; and FLOP of the sums of a sequence that the owner ran.
  double recomputed = 0, summed = 0, summed_beside = 0;
  double loaded = 0;       ///< bytes of weights that a typical slice needs
  double weights = 0;      ///< bytes of its weights
  bool several = false;    ///< it has more than one piece: any slice may need all of its weights
  double heads = 0;        ///< share of the weights of two heads, which a slice of attention may touch in part
  Bytes beside;            ///< memory of a typical slice on a replica, without its sums
  double rounding = 0;     ///< rounding_bytes()
  OwnerBytes of_owner[2];  ///< of an owner that is no replica; of one that is
  std::vector<PieceFigures> pieces;  ///< those that have a gradient

  /// Bytes of weights that an owner of this share needs which is no replica.
  [[nodiscard]] double weights_for(double share) const;
};

/// The figures of all runs of some work, computed when they are first asked for.
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
