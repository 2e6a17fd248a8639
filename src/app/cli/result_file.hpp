// Where a command's result goes: to a file, or with "-" to standard output.
#pragma once

#include <string>
#include <string_view>

namespace cleave::app {

/// What else a command says then does not go there.
[[nodiscard]] bool is_standard_output(const std::string& name);

/// For a command that works for long before it has a result. Errors: EnvironmentError where its folder is not there, or
/// it is a folder itself.
void need_folder_of_result(const std::string& name);

/// Replaces the file as a whole. Errors: EnvironmentError; standard output shows its own at the end of the program.
void write_result(const std::string& name, std::string_view text);

}  // namespace cleave::app
