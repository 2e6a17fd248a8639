// An advisory lock (flock): the kernel gives it back when the process dies.
#include "output/folder_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>

#include "cleave/base/error.hpp"
#include "cleave/base/host_name.hpp"

namespace cleave::app {

namespace {

// A run that was killed gives its lock back once its processes are gone, which may be after whoever killed it goes on.
constexpr std::chrono::seconds kPatience(5);
constexpr std::chrono::milliseconds kLookEvery(50);

// 0: it is locked; otherwise what flock() reports, EWOULDBLOCK where another process still has it.
int lock(int descriptor, std::chrono::steady_clock::time_point until) {
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error != EWOULDBLOCK || std::chrono::steady_clock::now() >= until) return error;
    std::this_thread::sleep_for(kLookEvery);
  }
  return 0;
}

}  // namespace

FolderLock FolderLock::take(const std::filesystem::path& folder) {
  const std::string file = (folder / "lock").string();
  const auto until = std::chrono::steady_clock::now() + kPatience;
  const auto may_wait = [&] { return std::chrono::steady_clock::now() < until; };
  for (bool moved = false;; moved = true) {
    // A link there may lead to a file of somebody else's, which must not be cut.
    FolderLock held(::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (held.descriptor_ < 0 && errno == ENOENT && moved && may_wait()) {  // the other run is about to make it
      std::this_thread::sleep_for(kLookEvery);
      continue;
    }
    if (held.descriptor_ < 0 && errno == ELOOP) throw EnvironmentError("open", file, "it is a link: delete it");
    if (held.descriptor_ < 0) throw EnvironmentError("open", file, std::strerror(errno));
    if (const int error = lock(held.descriptor_, until); error != 0) {
      if (error != EWOULDBLOCK) return held;  // a file system without locks: a run there is not refused
      std::array<char, 300> text{};
      const ssize_t length = ::pread(held.descriptor_, text.data(), text.size(), 0);
      std::string who(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
      while (who.ends_with('\n')) who.pop_back();
      throw EnvironmentError("use output.dir", folder.string(),
                             "another run writes there" + (who.empty() ? who : " (" + who + ")"));
    }
    // Who held it may have moved the folder away, as a run that begins does with an earlier one, and made another.
    if (!held.is_of(folder) && may_wait()) continue;
    const std::string who = fmt::format("process {} on {}\n", ::getpid(), host_name());
    // Only for the message above: a full disk does not matter.
    if (::ftruncate(held.descriptor_, 0) == 0) (void)!::pwrite(held.descriptor_, who.data(), who.size(), 0);
    return held;
  }
}

bool FolderLock::is_of(const std::filesystem::path& folder) const {
  struct stat held {
  }, there{};
  return ::fstat(descriptor_, &held) == 0 && ::stat((folder / "lock").c_str(), &there) == 0 &&
         held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

bool FolderLock::is_anothers(const std::filesystem::path& folder) const {
  std::error_code error;
  return !is_of(folder) && std::filesystem::exists(folder / "lock", error);
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace cleave::app
