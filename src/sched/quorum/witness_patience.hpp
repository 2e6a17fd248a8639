// How long a witness is waited for, in tiles and in stages alike, before another one is asked.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cleave/base/units.hpp"

namespace cleave::sched {

/// Devices asked, one after another, before the server is the witness.
inline constexpr std::int64_t kDevicesAsked = 2;

/// When a witness is late. `since`: when others began to wait for it. `takes`: its time on an idle device. Example: one
/// that takes 3 s is late after 7.
[[nodiscard]] inline Seconds late_after(Seconds since, Seconds takes) {
  constexpr double kTimesWhatItTakes = 2;
  constexpr Seconds kAtLeast{1.0};
  return since + kAtLeast + takes * kTimesWhatItTakes;
}

}  // namespace cleave::sched
