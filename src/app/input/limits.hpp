// Limits of rates and times in inputs. With them a step takes less than 1e15 s, and times in double precision still
// tell messages apart: beyond, a simulation would not end.
#pragma once

#include "cleave/base/units.hpp"

namespace cleave::app {

inline constexpr BytesPerSecond kSlowestLink{1};
inline constexpr FlopsPerSecond kSlowestProcessor{1e3};
inline constexpr Seconds kLongestDelay{1e6};
/// Of its declared rates, a device that churn slows down.
inline constexpr double kSlowestFactor = 1e-9;
/// What a rank's heartbeat, a fifth of the patience with it, may be (comm/handshake.cpp), and room for its answer.
inline constexpr Seconds kLeastPatience{0.05}, kMostPatience{1e8};

}  // namespace cleave::app
