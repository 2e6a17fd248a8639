// XXH3-64 over bytes in memory, over a file, and the seal that ends a checkpoint.
//
// The seal is the last 24 bytes of the file: the 8 characters "CLVSEAL1", the number of bytes before the seal and the
// XXH3-64 of those bytes, both u64 little-endian. The HDF5 library ignores bytes after the end that its superblock
// states, so the file stays an ordinary HDF5 file; one that another program has since rewritten merely has no seal.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace cleave::checkpoint {

[[nodiscard]] std::uint64_t checksum(const void* bytes, std::size_t size);

/// Appends the seal. Errors: EnvironmentError.
void append_seal(const std::filesystem::path& path);

enum class Seal { right, wrong, absent };

/// Reads the file to its end and compares. Errors: EnvironmentError.
[[nodiscard]] Seal check_seal(const std::filesystem::path& path);

}  // namespace cleave::checkpoint
