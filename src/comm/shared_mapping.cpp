// memfd and mmap. Every failure here only means that memory is not shared, so none is an error.
#include "shared_mapping.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "cleave/base/block_pool.hpp"

namespace cleave::comm {

namespace {

constexpr int kSizeIsFixed = F_SEAL_SHRINK | F_SEAL_GROW;

// F_SEAL_FUTURE_WRITE of Linux 5.1: the mapping that is there stays writable, and nobody gets another.
constexpr int kNoOtherWriters = 0x10;

// Making a file larger than the process may is a deadly signal, in memory too.
bool may_make(std::int64_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
         (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= static_cast<rlim_t>(bytes));
}

int make_descriptor() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
#ifdef MFD_NOEXEC_SEAL
  const int descriptor = ::memfd_create("cleave", kFlags | MFD_NOEXEC_SEAL);
  if (descriptor >= 0) return descriptor;
#endif
  return ::memfd_create("cleave", kFlags);
}

}  // namespace

std::optional<SharedMapping> SharedMapping::make(std::int64_t bytes, Writers writers) {
  SharedMapping made;
  made.bytes_ = bytes;
  if (!may_make(bytes) || ::getrandom(&made.token_, sizeof made.token_, 0) != sizeof made.token_) return std::nullopt;
  made.descriptor_ = make_descriptor();
  // The first page is taken now: writing to memory that cannot be had is a deadly signal.
  if (made.descriptor_ < 0 || ::ftruncate(made.descriptor_, bytes) != 0 ||
      ::fallocate(made.descriptor_, 0, 0, kFirst) != 0 || !made.map(true)) {
    return std::nullopt;
  }
  if (writers == Writers::maker) (void)::fcntl(made.descriptor_, F_ADD_SEALS, kNoOtherWriters);
  if (::fcntl(made.descriptor_, F_ADD_SEALS, kSizeIsFixed | F_SEAL_SEAL) != 0) return std::nullopt;
  std::memcpy(made.data_, &made.token_, sizeof made.token_);
  return made;
}

std::optional<SharedMapping> SharedMapping::open(const SharedAddress& address, bool writable) {
  if (address.pid <= 0 || address.bytes < kFirst) return std::nullopt;
  SharedMapping found;
  found.bytes_ = address.bytes;
  found.token_ = address.token;
  const std::string path = fmt::format("/proc/{}/fd/{}", address.pid, address.descriptor);
  found.descriptor_ = ::open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  struct stat state {};
  if (found.descriptor_ < 0 || ::fstat(found.descriptor_, &state) != 0 || state.st_size != address.bytes) {
    return std::nullopt;
  }
  const int seals = ::fcntl(found.descriptor_, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeIsFixed) != kSizeIsFixed || !found.map(writable)) return std::nullopt;
  std::uint64_t token = 0;
  std::memcpy(&token, found.data_, sizeof token);
  if (token != address.token) return std::nullopt;
  ::close(std::exchange(found.descriptor_, -1));  // the mapping keeps the memory
  return found;
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(bytes_));
  if (descriptor_ >= 0) ::close(descriptor_);
}

SharedAddress SharedMapping::address() const { return {::getpid(), descriptor_, bytes_, token_}; }

// On a boundary of huge pages, so that both ends can use them.
bool SharedMapping::map(bool writable) {
  const auto size = static_cast<std::size_t>(bytes_);
  const std::size_t room = size >= kHugePage ? size + kHugePage : size;
  void* const reserved = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return false;
  const auto start = reinterpret_cast<std::uintptr_t>(reserved);
  const std::size_t before = size >= kHugePage ? (kHugePage - start % kHugePage) % kHugePage : 0;
  std::byte* const first = static_cast<std::byte*>(reserved) + before;
  void* const mapped = ::mmap(first, size, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                              MAP_SHARED | MAP_NORESERVE | MAP_FIXED, descriptor_, 0);
  if (mapped == MAP_FAILED) {
    ::munmap(reserved, room);
    return false;
  }
  if (before > 0) ::munmap(reserved, before);
  const std::size_t pages = (size + kFirst - 1) / kFirst * kFirst;
  if (room > before + pages) ::munmap(first + pages, room - before - pages);
  data_ = static_cast<std::byte*>(mapped);
  return true;
}

}  // namespace cleave::comm
