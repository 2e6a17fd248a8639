// Entry point of the program: read the command line, run the command, turn whatever went wrong into an exit code.
#include "command_line.hpp"
#include "commands.hpp"
#include "failures.hpp"

int main(int argc, char** argv) {
  using namespace cleave::app;

  // 1. What is asked for. --help, --version and usage errors end here.
  const CommandLine line = parse_command_line(argc, argv);
  if (line.ended) return *line.ended;

  // 2. Do it. Commands with ranks start MPI themselves.
  return with_exit_code([&] { return run_command(line, argc, argv); });
}
