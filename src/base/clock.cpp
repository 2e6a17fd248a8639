// The host's monotonic clock.
#include "cleave/base/clock.hpp"

#include <chrono>
#include <thread>

namespace cleave {

Seconds SteadyClock::now() const {
  return Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

void SteadyClock::sleep_until(Seconds time) {
  const Seconds left = time - now();
  if (left.value() > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left.value()));
}

}  // namespace cleave
