// Arrays of token ids, and the two kinds of file that hold nothing else.
//
// A corpus can be large, so ids take two bytes each unless the vocabulary needs more.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/data/text.hpp"

namespace cleave::data {

/// A fixed-width array of token ids.
class TokenArray {
 public:
  TokenArray() = default;
  /// `vocab_size` decides the width of the array; ids must be below it.
  TokenArray(std::int64_t size, std::int64_t vocab_size);
  explicit TokenArray(std::vector<std::uint16_t> tokens) : tokens_(std::move(tokens)) {}

  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] std::int32_t operator[](std::int64_t index) const {
    if (const auto* narrow = std::get_if<Narrow>(&tokens_)) return (*narrow)[static_cast<std::size_t>(index)];
    return std::get<Wide>(tokens_)[static_cast<std::size_t>(index)];
  }
  void set(std::int64_t index, std::int32_t token) {
    if (auto* narrow = std::get_if<Narrow>(&tokens_)) {
      (*narrow)[static_cast<std::size_t>(index)] = static_cast<std::uint16_t>(token);
    } else {
      std::get<Wide>(tokens_)[static_cast<std::size_t>(index)] = token;
    }
  }
  /// Copies tokens [first, first + out.size()) to `out`. Requires: the range lies within the array.
  void copy(std::int64_t first, std::span<std::int32_t> out) const;
  /// The largest id; -1 for an empty array. One pass over the array.
  [[nodiscard]] std::int32_t max() const;
  [[nodiscard]] std::vector<std::int32_t> to_vector() const;

 private:
  using Narrow = std::vector<std::uint16_t>;
  using Wide = std::vector<std::int32_t>;
  std::variant<Narrow, Wide> tokens_;
};

/// Reads a token file: raw little-endian uint16 (nanoGPT), or a header of 256 int32 (magic 20240520, version 1, number
/// of tokens) followed by uint16 (llm.c). Which one it is, the file tells.
/// Errors: appends an Issue (key `key`) for a file that is missing, unreadable, empty, of odd length, of another
/// version, or whose length is not what its header says; the array is then empty.
[[nodiscard]] TokenArray load_tokens(const SourceEntry& entry, std::string_view key, std::vector<Issue>& issues);

}  // namespace cleave::data
