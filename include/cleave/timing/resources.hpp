// The serial resources of the time model: links, processors, the server's interface.
#pragma once

#include <algorithm>

#include "cleave/base/units.hpp"

namespace cleave::timing {

/// A resource that does one thing at a time, in order of request.
class SerialResource {
 public:
  /// Takes the resource for `duration`, from `earliest` or from free_at(), whichever is later. Returns the start.
  Seconds reserve(Seconds earliest, Seconds duration) {
    const Seconds start = std::max(earliest, free_at_);
    free_at_ = start + duration;
    busy_ += duration;
    return start;
  }
  [[nodiscard]] Seconds free_at() const { return free_at_; }
  /// Total time for which it was taken.
  [[nodiscard]] Seconds busy() const { return busy_; }

 private:
  Seconds free_at_{0}, busy_{0};
};

}  // namespace cleave::timing
