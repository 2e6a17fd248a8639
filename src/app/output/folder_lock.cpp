// An advisory lock (flock): the kernel gives it back when the process dies.
#include "output/folder_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "cleave/base/error.hpp"
#include "cleave/base/host_name.hpp"

namespace cleave::app {

FolderLock FolderLock::take(const std::filesystem::path& folder) {
  const std::string file = (folder / "lock").string();
  // A link there may lead to a file of somebody else's, which must not be cut.
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor < 0 && errno == ELOOP) throw EnvironmentError("open", file, "it is a link: delete it");
  if (descriptor < 0) throw EnvironmentError("open", file, std::strerror(errno));
  FolderLock lock(descriptor);
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return lock;  // a file system without locks: a run there is not refused
    std::array<char, 300> text{};
    const ssize_t length = ::pread(descriptor, text.data(), text.size(), 0);
    std::string who(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
    while (who.ends_with('\n')) who.pop_back();
    throw EnvironmentError("use output.dir", folder.string(),
                           "another run writes there" + (who.empty() ? who : " (" + who + ")"));
  }
  const std::string who = fmt::format("process {} on {}\n", ::getpid(), host_name());
  // Only for the message above: a full disk does not matter.
  if (::ftruncate(descriptor, 0) != 0 || ::pwrite(descriptor, who.data(), who.size(), 0) < 0) return lock;
  return lock;
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace cleave::app
