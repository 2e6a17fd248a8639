// verdict.json in a run's folder: devices were found out, and steps are to be taken back, but checkpoints and metrics
// do not show it yet. It is there from the moment that somebody is found out until they do, so that a process that is
// killed in between leaves no checkpoint that the next one takes for good.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "cleave/base/ids.hpp"

namespace cleave::app {

struct Verdict {
  std::int64_t after_step = 0;  ///< steps after it (1-based) are to be taken back
  std::vector<DeviceId> devices;
};

/// Numbers of devices, for messages.
[[nodiscard]] std::vector<std::int64_t> values_of(const std::vector<DeviceId>& devices);

/// Durable when it returns. Errors: EnvironmentError.
void store_verdict(const std::filesystem::path& folder, const Verdict& verdict);

/// Errors: InputError for a file of that name that does not say what is to be taken back.
[[nodiscard]] std::optional<Verdict> find_verdict(const std::filesystem::path& folder);

/// It has been carried out, durably: there is none any more. Errors: EnvironmentError.
void remove_verdict(const std::filesystem::path& folder);

}  // namespace cleave::app
