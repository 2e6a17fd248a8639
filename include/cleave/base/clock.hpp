// Where "now" comes from, so that whatever waits or times can be tested without waiting.
#pragma once

#include "cleave/base/units.hpp"

namespace cleave {

/// A source of time. Times of different clocks are not comparable.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Seconds since an arbitrary origin; never goes back.
  [[nodiscard]] virtual Seconds now() const = 0;
  /// Returns no earlier than at `time`.
  virtual void sleep_until(Seconds time) = 0;
};

/// The host's monotonic clock. One origin for all processes of a host.
class SteadyClock final : public Clock {
 public:
  [[nodiscard]] Seconds now() const override;
  void sleep_until(Seconds time) override;
};

/// A clock that moves only when told: sleep_until() jumps.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] Seconds now() const override { return now_; }
  void sleep_until(Seconds time) override {
    if (time > now_) now_ = time;
  }
  void advance(Seconds by) { now_ += by; }

 private:
  Seconds now_{0};
};

}  // namespace cleave
