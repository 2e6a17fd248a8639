// Finding finish times: roots of rising functions, and bisection on a condition.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace cleave::plan {

inline constexpr double kNever = std::numeric_limits<double>::infinity();
/// Finish times are sought between these, in seconds.
inline constexpr double kSoonest = 1e-12, kLatest = 1e18;

/// Smallest t, to a relative `precision` from above, for which `feasible(t)`; feasible must be monotone. The search
/// begins at `guess`. kNever when nothing is feasible.
template <class Feasible>
[[nodiscard]] double least_feasible(const Feasible& feasible, double precision, double guess = 1.0) {
  double high = guess > kSoonest && guess < kLatest ? guess : 1.0, low = 0;
  double step = 1.05;
  if (feasible(high)) {
    low = high / step;
    while (low > kSoonest && feasible(low)) {
      high = low;
      low /= step *= step;
    }
  } else {
    do {
      if (high > kLatest) return kNever;
      low = high;
      high *= step;
      step *= step;
    } while (!feasible(high));
  }
  while (high - low > precision * high) {
    const double middle = high > 4 * low ? std::sqrt(std::max(low, kSoonest) * high) : low + (high - low) / 2;
    (feasible(middle) ? high : low) = middle;
  }
  return high;
}

/// A bracket of the root of a function that rises.
struct Bracket {
  double low = 0, high = kNever;
};

/// Brackets the t at which `f` reaches `target`, to a relative `precision`: f(low) < target <= f(high). `f` must not
/// fall. Interpolates between logarithms, because what devices do by t grows like a power of t. high is kNever when
/// the target is never reached.
template <class Function>
[[nodiscard]] Bracket find_rise(const Function& f, double target, double precision, double guess = 1.0) {
  double t = guess > kSoonest && guess < kLatest ? guess : 1.0;
  double low = 0, f_low = 0, high = kNever, f_high = kNever;
  const auto note = [&](double at) {
    const double value = f(at);
    if (value < target) {
      low = at;
      f_low = value;
    } else {
      high = at;
      f_high = value;
    }
  };
  note(t);
  for (double step = 1.02; high == kNever; step *= step) {
    if (low > kLatest) return {low, kNever};
    note(low * step);
  }
  for (double step = 1.02; low == 0; step *= step) {
    if (high < kSoonest) return {0, high};
    note(high / step);
  }
  bool widen = false;  // interpolation that stays on one side takes a plain step in between
  for (int i = 0; i < 200 && high - low > precision * high; ++i) {
    const double middle = std::sqrt(low * high);
    t = middle;
    if (!widen && f_low > 0) {
      const double share = std::log(target / f_low) / std::log(f_high / f_low);
      t = low * std::pow(high / low, share);
      // Lands just beyond the root, so that the next point closes the bracket from the other side.
      const double margin = 0.3 * precision * t;
      t = t - low < high - t ? std::max(t, low) + margin : std::min(t, high) - margin;
      if (!(t > low && t < high)) t = middle;
    }
    const double before = high - low;
    note(t);
    widen = high - low > 0.5 * before;
  }
  return {low, high};
}

}  // namespace cleave::plan
