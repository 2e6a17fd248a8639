// Memory that is kept for its next use: of containers whose elements come and go with every tasklet or message, and of
// vectors that last as long as one. Once a step has been trained, the next ones take nothing from the heap. Blocks of
// tensors and large messages are block_pool.hpp's.
#pragma once

#include <functional>
#include <memory_resource>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cleave {

/// Bytes up to which a block is small: memory_for_pools() ends the program where there is none left for one.
inline constexpr std::size_t kSmallBlock = std::size_t{64} << 10;

/// The heap that std::pmr pools take their memory from. Thread-safe. It calls std::terminate where there is no memory
/// for a small block: the pools of GNU's C++ library 12 catch std::bad_alloc while their list of chunks is empty, and
/// then read the last entry of that list. Errors: std::bad_alloc for larger blocks.
[[nodiscard]] std::pmr::memory_resource& memory_for_pools();

/// Gives memory to std::pmr containers and keeps what comes back for their next elements. Must outlive its containers.
/// One thread at a time.
class NodePool final : public std::pmr::unsynchronized_pool_resource {
 public:
  NodePool() : unsynchronized_pool_resource(&memory_for_pools()) {}
  /// Requires: `from` gives small blocks as memory_for_pools() does.
  NodePool(const std::pmr::pool_options& options, std::pmr::memory_resource* from)
      : unsynchronized_pool_resource(options, from) {}
};

/// The pool of KeptVector and KeptMap, for up to 1 MiB at once. Any thread may use it, as long as the process lives.
[[nodiscard]] std::pmr::memory_resource& kept_memory();

/// An allocator over kept_memory(), for containers of the standard library. Errors of allocate(): std::bad_alloc.
template <class T>
struct KeptAllocator {
  using value_type = T;
  KeptAllocator() = default;
  template <class U>
  KeptAllocator(const KeptAllocator<U>&) noexcept {}
  [[nodiscard]] T* allocate(std::size_t n) {
    return static_cast<T*>(kept_memory().allocate(n * sizeof(T), alignof(T)));
  }
  void deallocate(T* data, std::size_t n) noexcept { kept_memory().deallocate(data, n * sizeof(T), alignof(T)); }
  friend bool operator==(KeptAllocator, KeptAllocator) { return true; }
};

/// Containers over kept_memory(): what one frees serves the next one.
template <class T>
using KeptVector = std::vector<T, KeptAllocator<T>>;
template <class Key, class T>
using KeptMap = std::unordered_map<Key, T, std::hash<Key>, std::equal_to<Key>, KeptAllocator<std::pair<const Key, T>>>;

}  // namespace cleave
