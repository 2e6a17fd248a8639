// What is said of work that no layout in stages fits.
#pragma once

#include "stages/layout.hpp"

namespace cleave::plan::stages {

/// Names a device and the memory that it lacks: for a piece that fits no device, or, where every piece fits one, beside
/// the least multiple of all memories for which a layout was found.
/// Requires: no layout was found. Errors: always InputError.
[[noreturn]] void refuse(const Problem& problem);

}  // namespace cleave::plan::stages
