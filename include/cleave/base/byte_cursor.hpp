// Values and arrays one after another in bytes, as payloads of messages hold them. Both sides run on the same machine
// type (docs/wire_format.md), so values are copied as they are.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace cleave {

class ByteWriter {
 public:
  /// Writes from the first byte of `to` on. Requires: what is written fits.
  explicit ByteWriter(std::span<std::byte> to) : to_(to) {}
  template <class T>
  void put(std::span<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (values.empty()) return;
    std::memcpy(to_.data(), values.data(), values.size_bytes());
    to_ = to_.subspan(values.size_bytes());
  }
  template <class T>
  void put_value(const T& value) {
    put(std::span<const T>(&value, 1));
  }
  /// Room for `count` values, to be written by the caller. Requires: it fits, and is aligned for them.
  template <class T>
  std::span<T> room(std::size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    T* const first = reinterpret_cast<T*>(to_.data());
    to_ = to_.subspan(count * sizeof(T));
    return {first, count};
  }
  [[nodiscard]] std::span<std::byte> rest() const { return to_; }
  /// Leaves out bytes that somebody else writes. Requires: so many are left.
  void skip(std::size_t bytes) { to_ = to_.subspan(bytes); }

 private:
  std::span<std::byte> to_;
};

/// After the first read beyond the end nothing more is read, and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> from) : from_(from) {}
  template <class T>
  T value() {
    T value{};
    take(&value, 1);
    return value;
  }
  /// Copies `count` values. Requires: count is not negative and its bytes do not overflow.
  template <class T>
  std::vector<T> values(std::size_t count) {
    if (count > from_.size() / sizeof(T)) {
      fail();
      return {};
    }
    std::vector<T> values(count);
    take(values.data(), count);
    return values;
  }
  /// The same without a copy: a view of the bytes. Requires: they are aligned for T.
  template <class T>
  std::span<const T> view(std::size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (!ok_ || count > from_.size() / sizeof(T)) {
      fail();
      return {};
    }
    const T* const first = reinterpret_cast<const T*>(from_.data());
    from_ = from_.subspan(count * sizeof(T));
    return {first, count};
  }
  template <class T>
  std::span<const T> rest_view() {
    if (from_.size() % sizeof(T) != 0) fail();
    return view<T>(from_.size() / sizeof(T));
  }
  /// All that is left, where it is a whole number of values.
  template <class T>
  std::vector<T> rest() {
    if (from_.size() % sizeof(T) != 0) fail();
    return values<T>(from_.size() / sizeof(T));
  }
  /// The next bytes themselves; none where there are not so many.
  std::span<const std::byte> bytes(std::size_t count) {
    if (count > from_.size()) {
      fail();
      return {};
    }
    const std::span<const std::byte> taken = from_.first(count);
    from_ = from_.subspan(count);
    return taken;
  }
  [[nodiscard]] std::span<const std::byte> left() const { return from_; }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool done() const { return ok_ && from_.empty(); }

 private:
  template <class T>
  void take(T* to, std::size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (count > from_.size() / sizeof(T)) return fail();
    if (count == 0) return;
    std::memcpy(to, from_.data(), count * sizeof(T));
    from_ = from_.subspan(count * sizeof(T));
  }
  void fail() {
    ok_ = false;
    from_ = {};
  }

  std::span<const std::byte> from_;
  bool ok_ = true;
};

}  // namespace cleave
