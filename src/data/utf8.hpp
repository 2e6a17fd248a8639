// UTF-8: one code point in, one code point out. Strict: no overlong forms, no surrogates, nothing past U+10FFFF.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cleave::data {

struct CodePoint {
  char32_t value = 0;
  int length = 0;  ///< bytes that it takes
};

/// The code point that starts at byte `at` of `bytes`, or nothing where none does. Requires: at < bytes.size().
[[nodiscard]] std::optional<CodePoint> decode_utf8(std::string_view bytes, std::size_t at);

/// Appends `value` to `out`. Requires: value is a code point and no surrogate.
void append_utf8(char32_t value, std::string& out);

/// Whether `value` may stand in UTF-8.
constexpr bool is_scalar_value(std::uint64_t value) {
  return value <= 0x10FFFF && !(value >= 0xD800 && value <= 0xDFFF);
}

}  // namespace cleave::data
