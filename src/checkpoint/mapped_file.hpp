// A file mapped into memory for reading.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "cleave/base/error.hpp"

namespace cleave::checkpoint {

/// A file that is there and that this process may not read, or cannot now: it may be as good as any.
class UnreadableFile : public InputError {
 public:
  UnreadableFile(const std::filesystem::path& path, std::string reason);
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

class MappedFile {
 public:
  /// Errors: InputError for what is missing, empty or no regular file, UnreadableFile for what may not be
  /// read.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Throws the InputError for a file: `FILE: message (hint)`.
[[noreturn]] void refuse_file(const std::filesystem::path& path, const std::string& message,
                              const std::string& hint = {});

}  // namespace cleave::checkpoint
