// Values and arrays one after another in bytes, as payloads of messages hold them. Both sides run on the same machine
// type (docs/wire_format.md), so values are copied as they are.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace cleave {

/// Writes values one after another. It checks no bounds: every call requires that so many bytes are left.
class ByteWriter {
 public:
  /// Writes from the first byte of `to` on. Requires: `to` outlives the writer.
  explicit ByteWriter(std::span<std::byte> to) : to_(to) {}
  /// Copies the elements of `values`. T is trivially copyable.
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
  /// Passes over `count` values and returns the place for them; the caller writes them. Requires: the place is aligned
  /// for T.
  template <class T>
  std::span<T> room(std::size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    T* const first = reinterpret_cast<T*>(to_.data());
    to_ = to_.subspan(count * sizeof(T));
    return {first, count};
  }
  /// The bytes that were not written yet.
  [[nodiscard]] std::span<std::byte> rest() const { return to_; }
  /// Passes over bytes that the caller writes through rest().
  void skip(std::size_t bytes) { to_ = to_.subspan(bytes); }

 private:
  std::span<std::byte> to_;
};

/// Reads values one after another, for bytes from an untrusted sender. A read beyond the end yields zeros or nothing,
/// reads no byte, and makes ok() false; so does every read after it.
class ByteReader {
 public:
  /// Requires: `from` outlives the reader and the views that it returns.
  explicit ByteReader(std::span<const std::byte> from) : from_(from) {}
  /// The next value, copied.
  template <class T>
  T value() {
    T value{};
    take(&value, 1);
    return value;
  }
  /// The next `count` values, copied. Allocates only if so many are left.
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
  /// The next `count` values, as a view of the bytes. Requires: they are aligned for T.
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
  /// All that is left, copied. Fails where it is no whole number of values.
  template <class T>
  std::vector<T> rest() {
    if (from_.size() % sizeof(T) != 0) fail();
    return values<T>(from_.size() / sizeof(T));
  }
  /// The next `count` bytes, as a view.
  std::span<const std::byte> bytes(std::size_t count) {
    if (count > from_.size()) {
      fail();
      return {};
    }
    const std::span<const std::byte> taken = from_.first(count);
    from_ = from_.subspan(count);
    return taken;
  }
  /// The bytes that were not read yet; empty after a failure.
  [[nodiscard]] std::span<const std::byte> left() const { return from_; }
  /// No read has failed.
  [[nodiscard]] bool ok() const { return ok_; }
  /// No read has failed, and nothing is left.
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
