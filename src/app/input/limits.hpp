// Limits of rates and times in inputs. With them a step takes less than 1e15 s, and times in double precision still
// tell messages apart: beyond, a simulation would not end.
#pragma once

#include "cleave/base/units.hpp"

namespace cleave::app {

inline constexpr BytesPerSecond kSlowestLink{1};
inline constexpr FlopsPerSecond kSlowestProcessor{1e3};
inline constexpr Seconds kLongestDelay{1e6};

}  // namespace cleave::app
