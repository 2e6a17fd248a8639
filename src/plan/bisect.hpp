// Bisection on a finish time: the smallest time at which a monotone condition holds.
#pragma once

#include <cmath>

#include "cleave/base/error.hpp"

namespace cleave::plan {

/// Smallest t > 0, to a relative `precision` from above, for which `feasible(t)`; feasible must be monotone. `guess`
/// is where the search begins. Infinite when nothing up to 10^15 seconds is feasible.
template <class Feasible>
[[nodiscard]] double least_feasible(const Feasible& feasible, double precision, double guess = 1.0) {
  constexpr double kLeast = 1e-12, kMost = 1e15;
  double high = std::isfinite(guess) && guess > kLeast ? guess : 1.0, low = 0;
  if (feasible(high)) {
    low = high / 2;
    while (low > kLeast && feasible(low)) {
      high = low;
      low /= 2;
    }
  } else {
    low = high;
    do {
      if (high > kMost) return std::numeric_limits<double>::infinity();
      low = high;
      high *= 2;
    } while (!feasible(high));
  }
  while (high - low > precision * high) {
    const double middle = low + (high - low) / 2;
    (feasible(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace cleave::plan
