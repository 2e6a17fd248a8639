// Near misses among names, and text as it may be shown in a message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/config/nearest.hpp"

namespace cleave::config {

/// Edit distance in which a swap of neighbours counts one (optimal string alignment). O(|a| |b|).
[[nodiscard]] int edit_distance(std::string_view a, std::string_view b);

/// `text` without blanks, tabs and line ends around it.
[[nodiscard]] std::string_view trimmed(std::string_view text);

/// Length of the UTF-8 character at `at`, 0 where there is none (overlong forms and surrogates are none).
[[nodiscard]] std::size_t utf8_length(std::string_view text, std::size_t at);
[[nodiscard]] bool is_utf8(std::string_view text);

/// `text` in single quotes, control characters made visible, cut after 40 characters.
[[nodiscard]] std::string in_quotes(std::string_view text);

/// A key as a message names it: as it stands where it is a plain word, else quoted.
[[nodiscard]] std::string shown_key(std::string_view key);

/// "a, b, c", or "a, b or c" with `last` = " or ".
[[nodiscard]] std::string joined(const std::vector<std::string>& words, std::string_view last = ", ");

}  // namespace cleave::config
