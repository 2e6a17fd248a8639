// Deadlines: how long an answer is waited for before another device is asked too.
//
// The scheduler tells how long each answer took against its prediction; the limit for the next ones is the predicted
// time, stretched by how predictions held lately: median plus kSpreads times the distance from the median to the upper
// quartile. Quantiles, not means: a fifth of the fleet may straggle without stretching the limit for the rest. The form
// is that of a retransmission timer. Source: Jacobson 1988, "Congestion avoidance and control", section 2.
#pragma once

#include <array>
#include <cstddef>

#include "cleave/base/units.hpp"

namespace cleave::sched {

class Deadline {
 public:
  static constexpr std::size_t kWindow = 128;  ///< latest answers that count
  static constexpr std::size_t kEnough = 16;   ///< fewer say nothing
  static constexpr double kUnknown = 3.0;      ///< stretch while too little is known
  static constexpr double kLeast = 1.5;        ///< a copy never pays earlier: it takes about as long as the original
  static constexpr double kSpreads = 4.0;

  /// An answer took `actual`, and `predicted` had been expected. What is not positive and finite says nothing.
  void observe(Seconds predicted, Seconds actual);

  /// Factor on a predicted time.
  [[nodiscard]] double stretch() const { return stretch_; }
  /// Longest time for which an answer predicted to take `predicted` is waited for.
  [[nodiscard]] Seconds limit(Seconds predicted) const { return predicted * stretch_; }

 private:
  void update();
  std::array<double, kWindow> ratios_{};
  std::size_t count_ = 0;
  double stretch_ = kUnknown;
};

}  // namespace cleave::sched
