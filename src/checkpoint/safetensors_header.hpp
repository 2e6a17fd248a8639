// The JSON header of a safetensors file, parsed and checked against the length of the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/checkpoint/safetensors.hpp"

namespace cleave::checkpoint {

/// No header is longer than this; the reference implementation has the same limit.
inline constexpr std::uint64_t kLongestHeader = 100'000'000;

struct SafetensorsEntry {
  SafetensorsInfo info;
  std::uint64_t begin = 0;  ///< within the file, not within its data part
  std::uint64_t size = 0;   ///< bytes
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

/// Checks all of the format's rules: header within the file; each tensor's range as long as its type and shape say;
/// ranges side by side from the first to the last byte. Errors: InputError naming `path` and tensor.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(const std::filesystem::path& path,
                                                         std::span<const std::byte> file);

/// tensor name -> shard's file name, from an index. Errors: InputError.
[[nodiscard]] std::map<std::string, std::string> parse_safetensors_index(const std::filesystem::path& path,
                                                                         std::span<const std::byte> file);

}  // namespace cleave::checkpoint
