// Data-parallel layouts: every device holds the whole model, and sums the gradients of the sequences that it runs.
// Where memory allows, it keeps the values of forward passes, so that nothing is recomputed.
#pragma once

#include <cstdint>
#include <vector>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

/// How sequences pass the work: there and back, or as in a round below the last one (rounds.cpp) all of them forward
/// and later all of them backward. Nothing is kept from the one to the other.
enum class Passes : std::uint8_t { both, one_by_one };

/// Layouts with a few numbers of stages, the least forecast first; none where some device lacks the memory, or there
/// are more devices than sequences. `chunk`: tokens; 0: tries whole sequences and shorter chunks.
[[nodiscard]] std::vector<StagePlan> data_parallel_layouts(const Problem& problem, std::int64_t chunk,
                                                           Passes passes = Passes::both);

}  // namespace cleave::plan::stages
