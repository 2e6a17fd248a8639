// Learning what devices really do: rates estimated from observed times, in place of declared ones that are wrong.
//
// The scheduler (or whoever sees results) reports how long an amount took on one resource of one device; learned()
// gives the device as the planner should see it. Robust: one late message changes nothing, a device that has really
// slowed down is believed after a few.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

#include "cleave/base/ids.hpp"
#include "cleave/fleet/profile.hpp"

namespace cleave::plan {

enum class Resource : std::uint8_t { downlink, compute, uplink };

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

/// Estimators of all devices.
class LearnedRates {
 public:
  void observe(DeviceId device, Resource resource, double amount, Seconds time);
  /// The profile with learned rates in place of declared ones. Nothing else changes.
  [[nodiscard]] fleet::DeviceProfile learned(const fleet::DeviceProfile& declared) const;
  /// What was learned of a device is void, e.g. because it left and another one came.
  void forget(DeviceId device);

 private:
  std::unordered_map<DeviceId, std::array<RateEstimator, 3>> estimators_;
};

}  // namespace cleave::plan
