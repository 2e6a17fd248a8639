// Churn traces as files: YAML, a list of events.
//
//   events:
//     - {at: 12.5 s, device: 3, kind: leave}
//     - {at: 40 s, device: 3, kind: join}
//     - {at: 1 min, device: 5, kind: slow, factor: 0.1}
//     - {at: 2 min, device: 6, kind: lie, factor: 0.5, lie: swap_rows}
#pragma once

#include <cstdint>
#include <filesystem>

#include "cleave/config/reader.hpp"
#include "cleave/fleet/churn.hpp"

namespace cleave::app {

/// The key that says what is wrong with the results of a lie.
[[nodiscard]] fleet::InjectedFaultKind read_fault_kind(const config::Section& in, const char* key);

/// Reads a trace for a fleet of `devices`, in order of time.
/// Errors: InputError with every fault found.
[[nodiscard]] fleet::ChurnTrace read_churn_trace(const std::filesystem::path& path, std::int64_t devices);

}  // namespace cleave::app
