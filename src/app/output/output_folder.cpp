// Looks at every part of the path, and at the input.yaml that is there.
#include "output/output_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"
#include "cleave/config/reader.hpp"
#include "output/run_files.hpp"

namespace cleave::app {

namespace fs = std::filesystem;

namespace {

/// The first part of the path that is there and no folder; empty for none.
fs::path in_the_way(const fs::path& folder) {
  fs::path part;
  std::error_code error;
  for (const fs::path& name : folder) {
    part /= name;
    const fs::file_status status = fs::status(part, error);
    if (fs::is_directory(status)) continue;
    const bool there = fs::exists(status) || fs::is_symlink(fs::symlink_status(part, error));
    return there ? part : fs::path();
  }
  return {};
}

/// What is written under these names would go to whoever reads the pipe, or wait for somebody to.
void refuse_pipes(const fs::path& folder) {
  const auto refuse = [&](std::string_view name) {
    std::error_code error;
    const fs::file_status status = fs::status(folder / name, error);
    if (fs::is_fifo(status) || fs::is_socket(status))
      throw EnvironmentError("write", (folder / name).string(), "it is a pipe, and no file");
  };
  std::ranges::for_each(kRecordsOfRun, refuse);
  std::ranges::for_each(kOtherFilesOfRun, refuse);
}

}  // namespace

void refuse_unfit_folder(const fs::path& folder, const Input& input) {
  if (const fs::path other = in_the_way(folder); !other.empty())
    throw EnvironmentError("use output.dir", folder.string(), other.string() + " is no folder");
  refuse_pipes(folder);
  const fs::path file = folder / "input.yaml";
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return;
  if (config::is_effective_yaml(read_file(file))) return;
  throw fault_at(input, "output.dir", fmt::format("{} is not of an earlier run, and would be replaced", file.string()),
                 "another folder for the run, or another name for that file");
}

}  // namespace cleave::app
