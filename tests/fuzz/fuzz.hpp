// What the fuzzers share: input bytes as a file, and which exceptions are an answer rather than a finding.
//
// A fuzzer calls a reader with bytes that nobody vouches for. The reader may refuse them with InputError, or
// EnvironmentError where a file is concerned; anything else (a crash, a sanitizer's report, another exception, memory
// out of proportion) is a finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "cleave/base/error.hpp"

namespace cleave::fuzz {

/// A file in memory with these bytes; it is gone with the object.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::uint8_t> bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  int descriptor_;
  std::filesystem::path path_;
};

/// Calls `read` and swallows a refusal.
template <class Read>
void expect_value_or_refusal(Read&& read) {
  try {
    read();
  } catch (const InputError&) {
  } catch (const EnvironmentError&) {}
}

}  // namespace cleave::fuzz
