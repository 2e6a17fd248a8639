// Dispatch by name.
#include "commands/commands.hpp"

#include <fmt/format.h>

#include "cleave/base/error.hpp"

namespace cleave::app {

int run_command(const CommandLine& line, int argc, char** argv) {
  if (line.command == "train") return train(line, argc, argv);
  if (line.command == "check") return check(line, argc, argv);
  if (line.command == "calibrate") return calibrate(line, argc, argv);
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
