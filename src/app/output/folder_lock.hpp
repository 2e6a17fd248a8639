// One run writes in a folder at a time.
#pragma once

#include <filesystem>
#include <utility>

namespace cleave::app {

/// Holds FOLDER/lock, which names the run, until it is destroyed or the process ends, however it ends.
class FolderLock {
 public:
  /// Waits up to 5 s for a process that holds it: one that was killed may be gone only then. Requires: the folder
  /// exists. Errors: EnvironmentError when another process holds it for longer, with that process's id.
  [[nodiscard]] static FolderLock take(const std::filesystem::path& folder);

  FolderLock(FolderLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~FolderLock();

  /// Whether the folder of that name is still the one that is locked: somebody may have moved or removed it.
  [[nodiscard]] bool is_of(const std::filesystem::path& folder) const;
  /// Whether it is not, and another run has a lock there.
  [[nodiscard]] bool is_anothers(const std::filesystem::path& folder) const;

 private:
  explicit FolderLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

}  // namespace cleave::app
