// Stopwatch: adds the processor time that a scope takes to a total: what planning costs, whoever else is busy.
#pragma once

#include <ctime>

#include "cleave/base/units.hpp"

namespace cleave::sched {

class Stopwatch {
 public:
  explicit Stopwatch(Seconds& total) : total_(total), start_(thread_time()) {}
  ~Stopwatch() { total_ += thread_time() - start_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  static Seconds thread_time() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return Seconds(static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec));
  }

  Seconds& total_;
  Seconds start_;
};

}  // namespace cleave::sched
