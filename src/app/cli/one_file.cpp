// By what the names stand for, not by how they are written: links, relative paths.
#include "cli/one_file.hpp"

#include <fmt/format.h>

#include <system_error>

#include "cleave/base/error.hpp"

namespace cleave::app {

void refuse_one_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  if (std::filesystem::equivalent(from, to, error))
    throw InputError(fmt::format("{} and {} are one file, which would be lost", from.string(), to.string()),
                     "another name for the result");
}

}  // namespace cleave::app
