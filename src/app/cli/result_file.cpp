// One meaning of "-" for all commands.
#include "cli/result_file.hpp"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"

namespace cleave::app {

bool is_standard_output(const std::string& name) { return name == "-"; }

void need_folder_of_result(const std::string& name) {
  if (name.empty() || is_standard_output(name)) return;
  const std::filesystem::path folder = std::filesystem::path(name).parent_path();
  std::error_code error;
  if (!folder.empty() && !std::filesystem::is_directory(folder, error))
    throw EnvironmentError("write", name, folder.string() + " is no folder");
  if (std::filesystem::is_directory(name, error)) throw EnvironmentError("write", name, "it is a folder");
  // It is written beside its place first (replace_file()).
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0)
    throw EnvironmentError("write", name, "files cannot be made in its folder");
}

void write_result(const std::string& name, std::string_view text) {
  if (is_standard_output(name)) {
    std::fwrite(text.data(), 1, text.size(), stdout);
  } else {
    replace_file(name, text);
  }
}

}  // namespace cleave::app
