// The error for work that fits no layout in stages.
#pragma once

#include "stages/layout.hpp"

namespace cleave::plan::stages {

/// Throws an InputError that names a device and the memory that it lacks: for a piece that no device has room for; or,
/// where every piece fits some device, to the least multiple of all memories for which a layout is found.
/// Requires: no layout was found for the problem.
[[noreturn]] void refuse(const Problem& problem);

}  // namespace cleave::plan::stages
