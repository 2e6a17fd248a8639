// Beliefs: the rates that plans are made with, learned from what devices did in place of what they declared.
//
// Every answer is observed; a plan's rates change only in steps, because every change voids the plans made before: when
// a learned rate differs by kWorthPlanning from the one believed, or at the start of a step by any amount that
// plan::RateEstimator tells from noise.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "cleave/plan/rates.hpp"
#include "cleave/sched/fleet.hpp"

namespace cleave::sched {

class Beliefs {
 public:
  static constexpr double kWorthPlanning = 0.25;

  void observe(const fleet::DeviceProfile& declared, const Measured& measured);
  /// Takes over what was learned, if it is worth new plans; `at_once`: whatever was learned.
  void renew(bool at_once);
  /// Puts believed rates in place of declared ones, and counts the work that they have in hand at those.
  void apply(std::vector<plan::DeviceState>& devices) const;
  /// Changes with the believed rates.
  [[nodiscard]] std::uint64_t version() const { return version_; }

 private:
  struct Rates {
    FlopsPerSecond compute;
    BytesPerSecond downlink, uplink;
    bool operator==(const Rates&) const = default;
  };
  static Rates rates_of(const fleet::DeviceProfile& profile);
  struct Device {
    plan::RateEstimator downlink, compute, uplink;
    Rates believed{}, latest{};
  };

  std::unordered_map<DeviceId, Device> devices_;
  bool worth_planning_ = false;
  std::uint64_t version_ = 0;
};

}  // namespace cleave::sched
