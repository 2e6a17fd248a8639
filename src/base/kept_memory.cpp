// The pool of vectors.
#include "cleave/base/kept_memory.hpp"

namespace cleave {

namespace {

// Larger vectors come from the heap each time. Unless told, the C++ library's pools end at 4 KiB.
constexpr std::size_t kLargest = std::size_t{1} << 20;

void* small_block(std::size_t bytes, std::size_t alignment) noexcept {
  return std::pmr::new_delete_resource()->allocate(bytes, alignment);
}

class MemoryForPools final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (bytes <= kSmallBlock) return small_block(bytes, alignment);
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* data, std::size_t bytes, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(data, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace

std::pmr::memory_resource& memory_for_pools() {
  static auto* const memory = new MemoryForPools;
  return *memory;
}

// Vectors die on any thread, some after main() has returned: it lives for ever.
std::pmr::memory_resource& kept_memory() {
  static auto* const memory = new std::pmr::synchronized_pool_resource(
      std::pmr::pool_options{.max_blocks_per_chunk = 0, .largest_required_pool_block = kLargest}, &memory_for_pools());
  return *memory;
}

}  // namespace cleave
