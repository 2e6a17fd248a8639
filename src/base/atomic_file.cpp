// Temporary file, fsync, rename, fsync of the folder.
#include "cleave/base/atomic_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "cleave/base/error.hpp"

namespace cleave {

namespace fs = std::filesystem;

namespace {

void sync_path(const fs::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), flags);
  if (descriptor < 0) throw EnvironmentError("open", path.string(), std::strerror(errno));
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  if (result != 0) throw EnvironmentError("sync", path.string(), std::strerror(error));
}

}  // namespace

void replace_file(const fs::path& path, const std::function<void(const fs::path&)>& write) {
  const fs::path temporary = path.string() + ".tmp";
  try {
    write(temporary);
    sync_path(temporary, O_RDONLY);
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      throw EnvironmentError("rename", temporary.string() + " to " + path.string(), std::strerror(errno));
    }
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
  sync_path(path.has_parent_path() ? path.parent_path() : fs::path("."), O_RDONLY | O_DIRECTORY);
}

void replace_file(const fs::path& path, std::string_view contents) {
  replace_file(path, [&](const fs::path& temporary) {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out.write(contents.data(), static_cast<std::streamsize>(contents.size()));
    out.flush();
    if (!out) throw EnvironmentError("write", temporary.string(), std::strerror(errno));
  });
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw EnvironmentError("open", path.string(), std::strerror(errno));
  std::string contents{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (in.bad()) throw EnvironmentError("read", path.string(), std::strerror(errno));
  return contents;
}

}  // namespace cleave
