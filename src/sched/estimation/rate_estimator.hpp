// Learning what devices really do: rates estimated from observed times, in place of declared ones that are wrong.
//
// RateEstimates (rate_estimates.hpp) keeps one of them for each resource of a device that does otherwise than it
// declares. Robust: one late message changes nothing, a device that has really slowed down is believed after a few.
#pragma once

#include <array>
#include <cstddef>

#include "cleave/base/units.hpp"

namespace cleave::sched {

/// The rate of one resource: the median of the last observations once there are kEnough of them.
class RateEstimator {
 public:
  static constexpr std::size_t kWindow = 9;  ///< odd, so that the median is an observation
  static constexpr std::size_t kEnough = 3;

  /// `amount` (bytes or FLOP) took `time`. What is not positive and finite is not an observation.
  void observe(double amount, Seconds time);
  [[nodiscard]] static bool is_observation(double amount, Seconds time);
  /// A rate that differs by so little is taken for the declared one.
  [[nodiscard]] static bool agrees(double rate, double declared);
  /// The median rate; `declared` while there are too few observations, or it differs by less than kTolerance.
  [[nodiscard]] double rate(double declared) const;

 private:
  static constexpr double kTolerance = 0.05;
  std::array<double, kWindow> recent_{};
  std::size_t count_ = 0;  ///< observations so far
};

}  // namespace cleave::sched
