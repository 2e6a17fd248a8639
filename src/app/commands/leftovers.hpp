// What Open MPI leaves behind when all of a job is killed at once: session folders (/tmp/ompi.HOST.UID/pid.N) and
// shared memory (/dev/shm/vader_segment.HOST.UID.*), which nobody else removes and which fill memory.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "cleave/base/units.hpp"

namespace cleave::app {

struct Leftovers {
  int sessions = 0;                         ///< session folders removed
  int segments = 0;                         ///< shared memory segments removed
  Bytes memory{0};                          ///< that those held
  std::vector<std::filesystem::path> stay;  ///< could not be removed
};

/// Where to look; another place in tests.
struct LeftoverPlaces {
  std::filesystem::path sessions;       ///< the folder that holds ompi.HOST.UID
  std::filesystem::path shared_memory;  ///< /dev/shm
  std::string host;
  std::chrono::seconds youngest;  ///< what was changed since so long is left alone: a job may just be starting

  /// Of this host and process, as Open MPI's settings have it.
  [[nodiscard]] static LeftoverPlaces here();
};

/// Removes what is this user's, of this host, and of no living process: a session whose mpirun is gone, a segment that
/// no process has mapped. Never throws for what it may not touch.
[[nodiscard]] Leftovers remove_leftovers(const LeftoverPlaces& where);

/// One line for the log; empty where nothing was found.
[[nodiscard]] std::string describe(const Leftovers& found);

}  // namespace cleave::app
