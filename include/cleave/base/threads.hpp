// How many threads a process should have.
#pragma once

namespace cleave {

/// The number of threads that `wanted` stands for: itself, or for 0 as many as there are cores that this process may
/// use, but no more than `most`. Example: `taskset -c 0` leaves one core, whatever the machine has.
[[nodiscard]] int threads_for(int wanted, int most = 16);

}  // namespace cleave
