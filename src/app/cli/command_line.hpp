// The command line: which command, its files, its options and the overrides of input keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cleave::app {

struct CommandLine {
  std::optional<int> ended;            ///< the exit code where nothing is left to do (help, version, wrong usage)
  std::string command;                 ///< "train", "check", ...
  std::vector<std::string> files;      ///< positional arguments that are not overrides
  std::vector<std::string> overrides;  ///< key=value
  std::string resume;                  ///< train: "auto" or a file; empty: start anew
  bool resume_with_changes = false;
  bool dry_run = false;
  std::string json;                  ///< file for JSON output; "-" for standard output
  std::vector<std::string> systems;  ///< simulate
  std::string prompt;                ///< generate
  std::vector<std::int64_t> prompt_tokens;
  std::int64_t tokens = 200;
  double temperature = 0.8;
  std::uint64_t seed = 1;
  std::string dtype = "f32";  ///< export
  std::string output;         ///< report, calibrate: the file to write; "-" for standard output
  bool hash = false;          ///< info
  bool quiet = false, verbose = false;
};

/// Parses the arguments; prints help, version and usage errors itself.
[[nodiscard]] CommandLine parse_command_line(int argc, char** argv);

/// The input file of a command that takes one. Errors: InputError where there is none, or something beside it.
[[nodiscard]] const std::string& only_input(const CommandLine& line);

}  // namespace cleave::app
