// What ranks say to rank 0 and hear from it while a run starts.
//
// Rank 0 exchanges messages with each other rank, and no two others do: devices need not be able to reach one another.
// A collective of MPI would connect them, and Open MPI 4.1 waits for ever for one that a device cannot reach. Rank 0
// never speaks first, so a connection is always made from one side.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

namespace cleave::comm {

/// Bytes of each rank in the order of ranks, on rank 0; nothing elsewhere.
/// Requires: as many bytes on every rank. Collective: all ranks. Errors: EnvironmentError.
[[nodiscard]] std::vector<std::byte> bytes_to_first(const void* own, std::size_t bytes);

/// Rank 0's bytes, on all ranks. Requires: as many bytes on every rank, which has told rank 0 something before.
/// Collective: all ranks. Errors: EnvironmentError.
void bytes_from_first(void* data, std::size_t bytes);

/// `own` of each rank on rank 0; nothing elsewhere. Collective: all ranks. Errors: EnvironmentError.
template <class T>
[[nodiscard]] std::vector<T> tell_first(const T& own) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::vector<std::byte> bytes = bytes_to_first(&own, sizeof own);
  std::vector<T> all(bytes.size() / sizeof own);
  if (!all.empty()) std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

/// Rank 0's value on all ranks. Requires, collective, errors: as bytes_from_first().
template <class T>
[[nodiscard]] T hear_first(T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes_from_first(&value, sizeof value);
  return value;
}
template <class T>
[[nodiscard]] std::vector<T> hear_first(std::vector<T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes_from_first(values.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace cleave::comm
