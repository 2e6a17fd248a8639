// Stands in for the C library's fsync() in the program of a test: says of what the disk was told to keep, and when, and
// may fail. No test can cut the power; this is as near as one comes to it.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

namespace cleave::testing_support {

/// While there is one, it is called with the path of what is synced, before that happens. Returns: an error to fail
/// with, or 0.
class WatchedSync {
 public:
  using Watcher = std::function<int(const std::string& path)>;
  explicit WatchedSync(Watcher watcher) { current() = std::move(watcher); }
  ~WatchedSync() { current() = nullptr; }
  WatchedSync(const WatchedSync&) = delete;
  WatchedSync& operator=(const WatchedSync&) = delete;
  static Watcher& current() {
    static Watcher watcher;
    return watcher;
  }
};

}  // namespace cleave::testing_support

// Found before the library's own, by the product's object files too.
extern "C" inline __attribute__((used)) int fsync(int descriptor) {
  using cleave::testing_support::WatchedSync;
  if (WatchedSync::current()) {
    std::error_code error;
    const std::string path =
        std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error).string();
    if (const int reason = WatchedSync::current()(path); reason != 0) {
      errno = reason;
      return -1;
    }
  }
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}
