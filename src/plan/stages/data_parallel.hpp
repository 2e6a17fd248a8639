// Data-parallel layouts: every device holds the whole model, takes whole sequences, and sums the gradients of those
// that it ran. Where memory allows it keeps what a sequence's way forward has made, so that nothing is made again.
#pragma once

#include <vector>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

/// With their forecasts, the least first; none where some device lacks the memory, or there are more devices than
/// sequences. `chunk`: tokens; 0: whole sequences, and shorter ones.
[[nodiscard]] std::vector<StagePlan> data_parallel_layouts(const Problem& problem, std::int64_t chunk);

}  // namespace cleave::plan::stages
