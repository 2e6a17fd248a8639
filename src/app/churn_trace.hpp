// Churn traces as files: YAML, a list of events.
//
//   events:
//     - {at: 12.5 s, device: 3, kind: leave}
//     - {at: 40 s, device: 3, kind: join}
//     - {at: 1 min, device: 5, kind: slow, factor: 0.1}
#pragma once

#include <cstdint>
#include <filesystem>

#include "cleave/fleet/churn.hpp"

namespace cleave::app {

/// Reads a trace for a fleet of `devices`, in order of time.
/// Errors: InputError with every fault found.
[[nodiscard]] fleet::ChurnTrace read_churn_trace(const std::filesystem::path& path, std::int64_t devices);

}  // namespace cleave::app
