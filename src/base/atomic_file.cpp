// Temporary file, fsync, rename, fsync of the folder.
#include "cleave/base/atomic_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "cleave/base/durable.hpp"
#include "cleave/base/error.hpp"

namespace cleave {

namespace fs = std::filesystem;

namespace {

void sync_file(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) throw EnvironmentError("open", path.string(), std::strerror(errno));
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  if (result != 0) throw EnvironmentError("sync", path.string(), std::strerror(error));
}

// A new file of this name: whatever bore it, a link to another file included, loses the name and nothing else.
// Errors tell of `wanted`, the file that it is to become.
void make_new_file(const fs::path& path, const fs::path& wanted) {
  int descriptor = -1;
  if (::unlink(path.c_str()) == 0 || errno == ENOENT)
    descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor < 0) throw EnvironmentError("write", wanted.string(), std::strerror(errno));
  ::close(descriptor);
}

// A device, a pipe or a socket, or a link to one: a file in its place would take it from everybody (/dev/null).
bool is_special(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  return type == fs::file_type::character || type == fs::file_type::block || type == fs::file_type::fifo ||
         type == fs::file_type::socket;
}

void write_all(const fs::path& path, std::string_view contents, int follow = O_NOFOLLOW) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | follow | O_CLOEXEC);
  if (descriptor < 0) throw EnvironmentError("open", path.string(), std::strerror(errno));
  while (!contents.empty()) {
    const ssize_t put = ::write(descriptor, contents.data(), contents.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      const int error = errno;
      ::close(descriptor);
      throw EnvironmentError("write", path.string(), std::strerror(error));
    }
    contents.remove_prefix(static_cast<std::size_t>(put));
  }
  if (::close(descriptor) != 0) throw EnvironmentError("close", path.string(), std::strerror(errno));
}

}  // namespace

void replace_file(const fs::path& path, const std::function<void(const fs::path&)>& write) {
  if (is_special(path)) throw EnvironmentError("write", path.string(), "it is a device or a pipe, and no file");
  const fs::path temporary = path.string() + ".tmp";
  try {
    make_new_file(temporary, path);
    write(temporary);
    sync_file(temporary);
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      throw EnvironmentError("rename", temporary.string() + " to " + path.string(), std::strerror(errno));
    }
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
  sync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

void replace_file(const fs::path& path, std::string_view contents) {
  if (is_special(path)) return write_all(path, contents, 0);
  replace_file(path, [&](const fs::path& temporary) { write_all(temporary, contents); });
}

std::string read_file(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) throw EnvironmentError("read", path.string(), "it is a folder");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw EnvironmentError("open", path.string(), std::strerror(errno));
  std::string contents{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (in.bad()) throw EnvironmentError("read", path.string(), std::strerror(errno));
  return contents;
}

}  // namespace cleave
