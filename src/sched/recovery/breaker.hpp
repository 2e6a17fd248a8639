// Breaker: leaves out for a while what keeps failing, one circuit breaker per device (docs/churn.md).
//
//   closed     the device gets work. kFailuresInARow losses without an answer in between open it.
//   open       the device gets no work for a pause: kFirstPause, twice as long each time, kLongestPause at most.
//   half open  the pause is over: the device gets work again; the first answer closes the breaker and forgets the
//              pauses, the first loss opens it at once.
//
// A loss is a block that will not be answered: its device left with it, hung, or its message was lost. Being late is no
// loss (rates are learned), and a wrong answer is not the breaker's business (the device is distrusted for good).
// Source: Nygard 2007, "Release It!", pattern Circuit Breaker.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "cleave/base/ids.hpp"
#include "cleave/base/units.hpp"

namespace cleave::sched {

class Breaker {
 public:
  static constexpr int kFailuresInARow = 3;
  static constexpr Seconds kFirstPause{60};
  static constexpr Seconds kLongestPause{3600};

  void failed(DeviceId device, Seconds now);
  void answered(DeviceId device);

  /// Ends pauses that are over. Call before leaves_out().
  void advance(Seconds now);
  [[nodiscard]] bool leaves_out(DeviceId device) const;
  /// Changes whenever leaves_out() may.
  [[nodiscard]] std::uint64_t version() const { return version_; }

 private:
  struct State {
    int failures = 0;  // in a row
    bool open = false;
    Seconds pause{0}, until{0};
  };
  std::unordered_map<DeviceId, State> states_;  // of devices that failed since they last answered
  std::uint64_t version_ = 0;
  std::size_t open_ = 0;
};

}  // namespace cleave::sched
