// An anonymous file of Linux, reached through /proc.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "fuzz.hpp"

namespace cleave::fuzz {

MemoryFile::MemoryFile(std::span<const std::uint8_t> bytes) : descriptor_(::memfd_create("cleave-fuzz", MFD_CLOEXEC)) {
  if (descriptor_ < 0) std::abort();
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written <= 0) std::abort();
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  path_ = "/proc/self/fd/" + std::to_string(descriptor_);
}

MemoryFile::~MemoryFile() { ::close(descriptor_); }

}  // namespace cleave::fuzz
