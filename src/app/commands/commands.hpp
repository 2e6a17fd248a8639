// The commands, one function and one file each. Each returns the program's exit code.
#pragma once

#include "cli/command_line.hpp"

namespace cleave::app {

/// Runs the command that the line names. Errors: whatever the command throws (failures.hpp maps it).
[[nodiscard]] int run_command(const CommandLine& line, int argc, char** argv);

[[nodiscard]] int train(const CommandLine& line, int argc, char** argv);
[[nodiscard]] int check(const CommandLine& line, int argc, char** argv);
[[nodiscard]] int calibrate(const CommandLine& line, int argc, char** argv);
[[nodiscard]] int plan_operations(const CommandLine& line);
[[nodiscard]] int simulate(const CommandLine& line);
[[nodiscard]] int report(const CommandLine& line);
[[nodiscard]] int generate(const CommandLine& line);
[[nodiscard]] int info(const CommandLine& line);
[[nodiscard]] int import_model(const CommandLine& line);
[[nodiscard]] int export_model(const CommandLine& line);

}  // namespace cleave::app
