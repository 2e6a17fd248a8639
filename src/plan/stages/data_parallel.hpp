// Data-parallel layouts: every device holds the whole model, and sums the gradients of the sequences that it runs.
// Where memory allows, it keeps the values of forward passes, so that nothing is recomputed.
#pragma once

#include <vector>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

/// Layouts with a few numbers of stages, the least forecast first; none where some device lacks the memory, or there
/// are more devices than sequences. `chunk`: tokens; 0: tries whole sequences and shorter chunks.
[[nodiscard]] std::vector<StagePlan> data_parallel_layouts(const Problem& problem, std::int64_t chunk);

}  // namespace cleave::plan::stages
