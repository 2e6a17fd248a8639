// Folders are synced through a descriptor of the folder itself.
#include "cleave/base/durable.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/error.hpp"

namespace cleave {

namespace fs = std::filesystem;

namespace {

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

}  // namespace

void sync_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw EnvironmentError("open", folder.string(), std::strerror(errno));
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // EINVAL, ENOTSUP: this file system has nothing to sync a folder with.
  if (result != 0 && error != EINVAL && error != ENOTSUP) {
    throw EnvironmentError("sync", folder.string(), std::strerror(error));
  }
}

void make_folders(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return;
  const fs::path clean = folder.has_filename() ? folder : folder.parent_path();
  if (clean.has_parent_path()) make_folders(clean.parent_path());
  if (!fs::create_directory(clean, error) && error) {
    throw EnvironmentError("create folder", folder.string(), error.message());
  }
  sync_folder(folder_of(clean));
}

void copy_file_whole(const fs::path& from, const fs::path& to) {
  replace_file(to, [&](const fs::path& temporary) {
    std::error_code error;
    fs::copy_file(from, temporary, fs::copy_options::overwrite_existing, error);
    if (error) throw EnvironmentError("copy", from.string() + " to " + temporary.string(), error.message());
  });
}

void link_or_copy(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (fs::equivalent(from, to, error)) return;
  const fs::path temporary = to.string() + ".tmp";
  fs::remove(temporary, error);
  // A second name of a link would be a link itself, and a relative one leads nowhere from another folder.
  const fs::path file = fs::is_symlink(from, error) ? fs::canonical(from, error) : from;
  if (::link(file.c_str(), temporary.c_str()) != 0) return copy_file_whole(from, to);
  if (::rename(temporary.c_str(), to.c_str()) != 0) {
    const int reason = errno;
    fs::remove(temporary, error);
    throw EnvironmentError("rename", temporary.string() + " to " + to.string(), std::strerror(reason));
  }
  sync_folder(folder_of(to));
}

}  // namespace cleave
