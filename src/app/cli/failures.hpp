// From exceptions to messages and exit codes: the one place where the program says what went wrong.
#pragma once

#include <functional>

namespace cleave::app {

/// Runs `body` and returns its exit code; an exception becomes a message on standard error (bad input: on the
/// first rank of a host only) and the exit code of its kind.
[[nodiscard]] int with_exit_code(const std::function<int()>& body);

/// 0 if standard output took all that was written to it. Errors: EnvironmentError (a full disk, say).
[[nodiscard]] int require_whole_output();

}  // namespace cleave::app
