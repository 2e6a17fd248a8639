// Everything that the bits of a run depend on besides the model's shape: what a resumed run compares with what its
// checkpoint says, so that no change passes in silence.
//
// Left out is what bits do not depend on (docs/numerics.md): the fleet, the plan, ranks, threads, the clock, checks,
// how long the run is and how often it looks at itself.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "input/input.hpp"
#include "input/training_data.hpp"

namespace cleave::app {

/// By key of the input; values as text that differs if, and only if, bits may.
using RunSettings = std::map<std::string, std::string>;

/// Requires: the data is loaded; `gemm_kernels` is the set in use, not "auto".
[[nodiscard]] RunSettings run_settings(const Input& input, const TrainingData& data, const std::string& gemm_kernels);

/// One line of JSON, for the checkpoint, and back. Text that is none yields no settings.
[[nodiscard]] std::string to_text(const RunSettings& settings);
[[nodiscard]] RunSettings settings_from(const std::string& text);

/// One line a key that differs: "train.lr 0.001 -> 0.002". A key that only one side knows is passed over on the side of
/// `then`, which an older program may have written.
[[nodiscard]] std::vector<std::string> differences(const RunSettings& then, const RunSettings& now);

}  // namespace cleave::app
