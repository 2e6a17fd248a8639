// malloc and its kin for the whole program, its libraries included: the GNU library's, and beyond it what is done about
// a want of memory (cli/want_of_memory.hpp). Libraries are written for systems that never say no, and crash of it: HDF5
// reads through null pointers, BLIS aborts.
//
// The GNU library lets a program define these functions (its manual, "Replacing malloc") and exports its own under the
// names used here.
#include <malloc.h>

#include <cerrno>
#include <cstdlib>

#include "cli/want_of_memory.hpp"

extern "C" {
void* __libc_malloc(std::size_t) noexcept;
void* __libc_calloc(std::size_t, std::size_t) noexcept;
void* __libc_realloc(void*, std::size_t) noexcept;
void* __libc_memalign(std::size_t, std::size_t) noexcept;
}

namespace {

// `ask` again, if there is something to be had. Who asks for more than this at once is taken to expect a no: HDF5 asks
// for lengths that it finds in a file.
constexpr std::size_t kMayBeRefused = std::size_t{64} << 20;

template <class Ask>
void* once_more(const void* code, std::size_t bytes, const Ask& ask) noexcept {
  void* got = nullptr;
  if (cleave::app::give_what_was_held_back()) got = ask();
  if (got == nullptr && bytes < kMayBeRefused) cleave::app::end_unless_it_can_be_told(code, bytes);
  return got;
}

}  // namespace

extern "C" {

void* malloc(std::size_t size) noexcept {
  void* const got = __libc_malloc(size);
  if (got != nullptr) [[likely]]
    return got;
  return once_more(__builtin_return_address(0), size, [&] { return __libc_malloc(size); });
}

void* calloc(std::size_t count, std::size_t size) noexcept {
  void* const got = __libc_calloc(count, size);
  if (got != nullptr) [[likely]]
    return got;
  std::size_t all = 0;
  if (__builtin_mul_overflow(count, size, &all)) return nullptr;
  return once_more(__builtin_return_address(0), all, [&] { return __libc_calloc(count, size); });
}

void* realloc(void* old, std::size_t size) noexcept {
  void* const got = __libc_realloc(old, size);
  if (got != nullptr || (old != nullptr && size == 0)) [[likely]]
    return got;
  return once_more(__builtin_return_address(0), size, [&] { return __libc_realloc(old, size); });
}

void* memalign(std::size_t alignment, std::size_t size) noexcept {
  void* const got = __libc_memalign(alignment, size);
  if (got != nullptr) [[likely]]
    return got;
  return once_more(__builtin_return_address(0), size, [&] { return __libc_memalign(alignment, size); });
}

void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  void* const got = __libc_memalign(alignment, size);
  if (got != nullptr) [[likely]]
    return got;
  return once_more(__builtin_return_address(0), size, [&] { return __libc_memalign(alignment, size); });
}

int posix_memalign(void** out, std::size_t alignment, std::size_t size) noexcept {
  if (alignment < sizeof(void*) || (alignment & (alignment - 1)) != 0) return EINVAL;
  void* got = __libc_memalign(alignment, size);
  if (got == nullptr)
    got = once_more(__builtin_return_address(0), size, [&] { return __libc_memalign(alignment, size); });
  if (got == nullptr) return ENOMEM;
  *out = got;
  return 0;
}

}  // extern "C"
