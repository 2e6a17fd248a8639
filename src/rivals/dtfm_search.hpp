// DTFM's evolutionary scheduler: a genetic search over balanced partitions with cyclic local search.
//
// Population of random partitions; each trial crosses two parents at five points, repairs group sizes, improves the
// child by cyclic partitioning (chains of moves that return to the group where they started, each device moved at most
// once, best prefix kept), and lets it replace the worse parent unless it is worse than both. The best few are then
// polished by swaps of two devices under the exact objective, so that the result is a local optimum of it. Source: Yuan
// et al. 2022; Bui & Moon 1996 and Kang & Moon's cyclic partitioning for the local search.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dtfm_objective.hpp"

namespace cleave::rivals {

struct DtfmSearchOptions {
  std::int64_t population = 100, trials = 4900;
  std::uint64_t seed = 0;
  bool polish = true;
  /// Called now and then with (trials done, trials, best total so far).
  std::function<void(std::int64_t, std::int64_t, double)> progress;
};

struct DtfmResult {
  Groups groups;  ///< in no particular order
  DtfmScore score;
  std::vector<Groups> others;  ///< the other polished partitions, best first: a worse objective may step faster
  std::int64_t trials = 0;     ///< carried out
};

/// Deterministic for a seed. Requires: stages divide devices.
[[nodiscard]] DtfmResult search_partition(DtfmObjective& objective, const DtfmSearchOptions& options);

/// Trials that fit a fixed amount of work, at most `wanted`: 4900 up to about 400 devices.
[[nodiscard]] std::int64_t affordable_trials(std::size_t devices, std::size_t stages, std::int64_t wanted);

/// The local search alone, on labels (group of each device); exposed for tests.
void improve_by_cycles(const DtfmObjective& objective, std::vector<std::size_t>& labels);

}  // namespace cleave::rivals
