// Streaming over the file in blocks, so that a file larger than memory can be sealed and checked.
#include "checksum.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "cleave/base/error.hpp"

namespace cleave::checkpoint {

static_assert(std::endian::native == std::endian::little, "checksums are over little-endian bytes in memory");

namespace {

constexpr std::array<char, 8> kMagic = {'C', 'L', 'V', 'S', 'E', 'A', 'L', '1'};

struct SealBytes {
  std::array<char, 8> magic;
  std::uint64_t length;
  std::uint64_t sum;
};
static_assert(sizeof(SealBytes) == 24);

/// A file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags) : path_(path.string()), id_(::open(path.c_str(), flags)) {
    if (id_ < 0) fail("open");
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(id_); }

  [[nodiscard]] std::int64_t size() const {
    struct stat status {};
    if (::fstat(id_, &status) != 0) fail("stat");
    return status.st_size;
  }

  /// Reads up to `count` bytes; fewer only at the end of the file.
  std::size_t read(void* out, std::size_t count) const {
    std::size_t done = 0;
    while (done < count) {
      const ssize_t got = ::read(id_, static_cast<char*>(out) + done, count - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail("read");
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

  void write(const void* bytes, std::size_t count) const {
    std::size_t done = 0;
    while (done < count) {
      const ssize_t put = ::write(id_, static_cast<const char*>(bytes) + done, count - done);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) fail("write");
      done += static_cast<std::size_t>(put);
    }
  }

  void seek(std::int64_t to) const {
    if (::lseek(id_, to, SEEK_SET) < 0) fail("seek");
  }

 private:
  [[noreturn]] void fail(const char* operation) const {
    throw EnvironmentError(operation, path_, std::strerror(errno));
  }

  std::string path_;
  int id_;
};

constexpr std::int64_t kBlock = 1 << 20;  // read at a time

/// XXH3-64 of the first `length` bytes from where `file` stands.
std::uint64_t sum_of(const Descriptor& file, std::int64_t length) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  if (!state) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  std::vector<char> block(static_cast<std::size_t>(std::clamp<std::int64_t>(length, 1, kBlock)));
  while (length > 0) {
    const auto wanted =
        static_cast<std::size_t>(std::min<std::int64_t>(length, static_cast<std::int64_t>(block.size())));
    const std::size_t got = file.read(block.data(), wanted);
    XXH3_64bits_update(state.get(), block.data(), got);
    if (got < wanted) break;  // somebody cut the file while we read: the sum will differ
    length -= static_cast<std::int64_t>(got);
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace

std::uint64_t checksum(const void* bytes, std::size_t size) { return XXH3_64bits(bytes, size); }

void append_seal(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  const std::int64_t length = file.size();
  const SealBytes seal{kMagic, static_cast<std::uint64_t>(length), sum_of(file, length)};
  file.seek(length);
  file.write(&seal, sizeof seal);
}

Seal check_seal(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY | O_CLOEXEC);
  const std::int64_t length = file.size() - static_cast<std::int64_t>(sizeof(SealBytes));
  if (length < 0) return Seal::absent;
  SealBytes seal{};
  file.seek(length);
  if (file.read(&seal, sizeof seal) != sizeof seal || seal.magic != kMagic) return Seal::absent;
  if (seal.length != static_cast<std::uint64_t>(length)) return Seal::wrong;
  file.seek(0);
  return sum_of(file, length) == seal.sum ? Seal::right : Seal::wrong;
}

}  // namespace cleave::checkpoint
