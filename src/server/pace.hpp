// Pace: makes real time follow the model (clock `wall`), and says by how much it did not.
//
// A step begins at a moment of real time. What happens at time t of the model, counted from the step's beginning, is
// passed on when t has gone by in real time too: the rest of every transfer, product and kernel is slept off. A host
// that falls behind does not sleep until it has caught up, so being late now and then costs nothing; what it cannot
// catch up with is the step's dilation.
//
// What is late has been waited for: an answer of a rank, or the server itself. So each has its part in the dilation,
// and the parts add up to the whole; what is caught up with is taken from all parts alike.
#pragma once

#include <map>

#include "cleave/base/units.hpp"

namespace cleave::server {

class Pace {
 public:
  /// A step begins: at `real` of the real clock and `modelled` of the model's.
  void begin(Seconds real, Seconds modelled);

  /// How long to wait at `real` before what happens at `modelled` may be passed on; zero when it is due.
  [[nodiscard]] Seconds left(Seconds real, Seconds modelled) const;

  /// It is passed on at `real`, after `rank` was waited for that long when it was due. Requires: nothing is left.
  void passed(Seconds real, Seconds modelled, int rank = 0, Seconds waited = Seconds(0));

  /// Real over modelled time from the beginning of the step to what was passed on last:
  ///   (real_last - real_begin) / (modelled_last - modelled_begin)
  /// At least 1, which is a host that keeps up; 1 before anything took time.
  [[nodiscard]] double dilation() const;

  /// How late the last event was because of each rank (0: the server), over the modelled time of the step: the parts of
  ///   dilation() - 1
  /// without unit. A rank that was never waited for is not there.
  [[nodiscard]] std::map<int, double> shares() const;

  /// The largest real_i - real_begin - (modelled_i - modelled_begin) of all that was passed on, in every step so far.
  [[nodiscard]] Seconds lateness() const { return lateness_; }

 private:
  Seconds real_begin_, modelled_begin_, real_, modelled_, lateness_;
  Seconds late_;                    // of what was passed on last
  std::map<int, Seconds> by_rank_;  // whose sum is late_
};

}  // namespace cleave::server
