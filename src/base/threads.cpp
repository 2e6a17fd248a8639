// The cores that the operating system lets this process use.
#include "cleave/base/threads.hpp"

#include <sched.h>

#include <algorithm>

namespace cleave {

int threads_for(int wanted, int most) {
  if (wanted > 0) return wanted;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  // std::thread::hardware_concurrency() also counts cores that this process may not use (GNU C library 2.36).
  const int allowed = ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
  return std::clamp(allowed, 1, most);
}

}  // namespace cleave
