// The pool of vectors.
#include "cleave/base/kept_memory.hpp"

namespace cleave {

// Vectors die on any thread, some after main() has returned: it lives for ever.
std::pmr::memory_resource& kept_memory() {
  static auto* const memory = new std::pmr::synchronized_pool_resource;
  return *memory;
}

}  // namespace cleave
