// What this host can do, measured: products on one core and on all, and memory.
//
// `calibrate` calls it on one rank of every host (rank_links.hpp). Figures are the best of several short trials, for
// what else runs on the host can only make them worse.
#pragma once

#include <string>

#include "cleave/base/units.hpp"

namespace cleave::app {

struct HostSpeed {
  int cores = 1;                      ///< that this process may use
  FlopsPerSecond core;                ///< fp32 products on one core, alone
  FlopsPerSecond all;                 ///< the same on every core at once
  BytesPerSecond memory, memory_all;  ///< a[i] = b[i] + s * c[i] over more than the caches hold: one core, all cores
};

/// Takes about two seconds.
[[nodiscard]] HostSpeed measure_host();

/// As the system calls it.
[[nodiscard]] std::string processor_name();

}  // namespace cleave::app
