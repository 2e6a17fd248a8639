// The pool of vectors.
#include "cleave/base/kept_memory.hpp"

namespace cleave {

namespace {

// Larger vectors come from the heap each time. Unless told, the C++ library's pools end at 4 KiB.
constexpr std::size_t kLargest = std::size_t{1} << 20;

}  // namespace

// Vectors die on any thread, some after main() has returned: it lives for ever.
std::pmr::memory_resource& kept_memory() {
  static auto* const memory = new std::pmr::synchronized_pool_resource(
      std::pmr::pool_options{.max_blocks_per_chunk = 0, .largest_required_pool_block = kLargest});
  return *memory;
}

}  // namespace cleave
