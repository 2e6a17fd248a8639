// SharedMapping: memory that two processes of one host can see, without a name in any file system.
//
// The maker's memory is a memfd, sealed so that its size never changes: no end can make the other fault by cutting it.
// The other process opens it through /proc/PID/fd, which needs nothing but the same user; a random token in the first
// bytes shows that it found the right one. Memory is taken when it is first touched, and goes with the last process
// that maps it, however the processes end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace cleave::comm {

/// Where another process finds a mapping; plain bytes, so that it can be sent. Pid 0: nowhere.
struct SharedAddress {
  std::int64_t pid = 0;
  std::int64_t descriptor = -1;
  std::int64_t bytes = 0;
  std::uint64_t token = 0;
};

/// See the file comment. Move-only; unmaps and closes what it has.
class SharedMapping {
 public:
  /// The token's place; what is shared starts behind it.
  static constexpr std::int64_t kFirst = 4096;

  /// Who may write to memory besides its maker.
  enum class Writers : std::uint8_t {
    maker,  ///< nobody: the kernel refuses it, where it can (Linux 5.1); then no part of it can be given back either
    all     ///< whoever finds it
  };

  /// New memory, all zero. Requires: kFirst <= bytes. Nothing where the system refuses.
  [[nodiscard]] static std::optional<SharedMapping> make(std::int64_t bytes, Writers writers = Writers::all);
  /// Another process's memory. Nothing where it cannot be opened, its size could change, or is not what the address
  /// says.
  [[nodiscard]] static std::optional<SharedMapping> open(const SharedAddress& address, bool writable);

  SharedMapping(SharedMapping&& other) noexcept { swap(other); }
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    swap(other);
    return *this;
  }
  ~SharedMapping();

  [[nodiscard]] SharedAddress address() const;
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  SharedMapping() = default;
  void swap(SharedMapping& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(token_, other.token_);
  }
  [[nodiscard]] bool map(bool writable);

  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::uint64_t token_ = 0;
};

}  // namespace cleave::comm
