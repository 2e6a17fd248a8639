// Dispatch by name.
#include "commands/commands.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "cleave/base/error.hpp"
#include "commands/session.hpp"

namespace cleave::app {

namespace {

// Commands of one process would read and write the same files as often as mpirun starts them.
bool is_left_to_first_process(const std::string& command) {
  if (!under_mpirun() || launcher_rank() == 0) return false;
  if (launcher_rank() == 1)
    fmt::print(stderr, "cleave: warning: {} is done by one process: the first of those that mpirun started\n", command);
  return true;
}

}  // namespace

int run_command(const CommandLine& line, int argc, char** argv) {
  if (line.command == "train") return train(line, argc, argv);
  if (line.command == "check") return check(line, argc, argv);
  if (line.command == "calibrate") return calibrate(line, argc, argv);
  if (is_left_to_first_process(line.command)) return 0;
  if (line.command == "plan") return plan_operations(line);
  if (line.command == "simulate") return simulate(line);
  if (line.command == "report") return report(line);
  if (line.command == "generate") return generate(line);
  if (line.command == "info") return info(line);
  if (line.command == "import") return import_model(line);
  CLEAVE_ASSERT(line.command == "export", "command {}", line.command);
  return export_model(line);
}

}  // namespace cleave::app
