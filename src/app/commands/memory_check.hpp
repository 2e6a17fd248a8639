// Whether a run will fit this host, asked before anything is made.
#pragma once

#include "cleave/server/memory_forecast.hpp"
#include "input/input.hpp"

namespace cleave::app {

/// What this host has free now; more than any run takes where the system does not say.
[[nodiscard]] Bytes available_memory();

/// The forecast of a run.
/// Errors: InputError when the model does not fit this host, or no device holds the smallest block.
[[nodiscard]] server::MemoryForecast check_memory(const Input& input, const server::TrainerOptions& options,
                                                  const server::DeviceRanks& ranks);

}  // namespace cleave::app
