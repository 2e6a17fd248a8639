// From an input to what a run is made of: devices, churn, trainer options; and how sizes and times are written.
#pragma once

#include <string>

#include "cleave/comm/mpi.hpp"
#include "cleave/server/trainer.hpp"
#include "input/input.hpp"

namespace cleave::app {

/// The trainer's options.
[[nodiscard]] server::TrainerOptions trainer_options(const Input& input);

/// `1.5 MiB`, `3.2 GiB`.
[[nodiscard]] std::string show(Bytes bytes);
/// `12.3 ms`, `4.5 s`, `1 h 20 min`.
[[nodiscard]] std::string show(Seconds time);

/// How the server's ranks are connected, as the input has it. Collective: server.
/// Errors: InputError where its host has no such interface.
[[nodiscard]] comm::MpiTransportOptions transport_options(const Input& input);

}  // namespace cleave::app
