// open, fstat, mmap; the descriptor is not needed afterwards.
#include "mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace cleave::checkpoint {

void refuse_file(const std::filesystem::path& path, const std::string& message, const std::string& hint) {
  throw InputError(
      std::vector<Issue>{Issue{.file = path.string(), .line = 0, .key = {}, .message = message, .hint = hint}});
}

UnreadableFile::UnreadableFile(const std::filesystem::path& path, std::string reason)
    : InputError(std::vector<Issue>{
          Issue{.file = path.string(), .line = 0, .key = {}, .message = "cannot be read: " + reason, .hint = {}}}),
      reason_(std::move(reason)) {}

MappedFile::MappedFile(const std::filesystem::path& path) {
  // Of a pipe that nobody writes to, open() would wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) refuse_file(path, std::string("cannot be read: ") + std::strerror(error));
    throw UnreadableFile(path, std::strerror(error));
  }
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  if (!known || !S_ISREG(status.st_mode) || status.st_size == 0) {
    ::close(descriptor);
    refuse_file(path, known && S_ISREG(status.st_mode) ? "is empty" : "not a file");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int error = errno;
  ::close(descriptor);
  if (data == MAP_FAILED) throw EnvironmentError("map", path.string(), std::strerror(error));
  data_ = static_cast<const std::byte*>(data);
  size_ = size;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace cleave::checkpoint
