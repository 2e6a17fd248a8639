// An advisory lock (flock): the kernel gives it back when the process dies.
#include "output/folder_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "cleave/base/error.hpp"
#include "cleave/base/host_name.hpp"

namespace cleave::app {

namespace {

// A run that was killed gives its lock back once its processes are gone, which may be after whoever killed it goes on.
constexpr std::chrono::seconds kPatience(5);
constexpr std::chrono::milliseconds kLookEvery(50);

// 0: it is locked; otherwise what flock() reports, EWOULDBLOCK where another process still has it.
int lock(int descriptor) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
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
  // A link there may lead to a file of somebody else's, which must not be cut.
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor < 0 && errno == ELOOP) throw EnvironmentError("open", file, "it is a link: delete it");
  if (descriptor < 0) throw EnvironmentError("open", file, std::strerror(errno));
  FolderLock held(descriptor);
  if (const int error = lock(descriptor); error != 0) {
    if (error != EWOULDBLOCK) return held;  // a file system without locks: a run there is not refused
    std::array<char, 300> text{};
    const ssize_t length = ::pread(descriptor, text.data(), text.size(), 0);
    std::string who(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
    while (who.ends_with('\n')) who.pop_back();
    throw EnvironmentError("use output.dir", folder.string(),
                           "another run writes there" + (who.empty() ? who : " (" + who + ")"));
  }
  const std::string who = fmt::format("process {} on {}\n", ::getpid(), host_name());
  // Only for the message above: a full disk does not matter.
  if (::ftruncate(descriptor, 0) != 0 || ::pwrite(descriptor, who.data(), who.size(), 0) < 0) return held;
  return held;
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace cleave::app
