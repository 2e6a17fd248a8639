// RateEstimates: the rates that plans are made with, learned from what devices did in place of what they declared.
//
// Every answer is observed; a plan's rates change only in steps, because every change voids the plans made before: when
// a learned rate differs by kWorthPlanning from the one estimated, or at the start of a step by any amount that
// RateEstimator tells from noise.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "by_device.hpp"
#include "cleave/sched/fleet.hpp"
#include "estimation/rate_estimator.hpp"

namespace cleave::sched {

class RateEstimates {
 public:
  static constexpr double kWorthPlanning = 0.25;

  /// What a device declares; the first time counts.
  void know(const fleet::DeviceProfile& declared);
  /// A device that is not known says nothing.
  void observe(DeviceId device, const Measured& measured);
  /// It did no more than 1 / `factor` of what it was believed to: so it is believed until a few answers say otherwise.
  void slowed(DeviceId device, double factor);
  /// What it did in one answer counts for more than all before, and what that says nothing of is no better.
  void begin_again(DeviceId device, const Measured& measured);
  /// Takes over what was learned, if it is worth new plans; `at_once`: whatever was learned.
  void renew(bool at_once);
  /// Puts estimated rates in place of declared ones, and counts the work that they have in hand at those.
  void apply(std::vector<plan::DeviceState>& devices) const;
  /// Changes with the estimated rates.
  [[nodiscard]] std::uint64_t version() const { return version_; }

 private:
  enum Resource : std::uint8_t { down, compute, up, kResources };
  using Rates = std::array<double, kResources>;  // bytes, FLOP, bytes a second
  using Times = std::array<Seconds, kResources>;
  // Bytes, FLOP and bytes of an observation, and what they took.
  static std::pair<Rates, Times> resources_of(const Measured& measured);
  // Of a device that once did otherwise than it declares.
  struct Learned {
    std::array<RateEstimator, kResources> estimators;
    Rates estimated{}, latest{};
  };
  // Most devices do as they declare, in every answer: then only answers are counted.
  struct Device {
    Rates declared{};
    std::array<std::uint8_t, kResources> as_declared{};  // observations, up to what an estimator remembers
    bool known = false;
    std::unique_ptr<Learned> learned;
  };
  static Rates rates_of(const fleet::DeviceProfile& profile);
  static void learn(Device& device);
  Learned& learned_of(DeviceId id, Device& device);
  void believe(Learned& learned, std::size_t resource, double amount, Seconds time);

  ByDevice<Device> devices_;
  std::vector<DeviceId> learned_;  // that are not as they declare
  bool worth_planning_ = false;
  std::uint64_t version_ = 0;
};

}  // namespace cleave::sched
