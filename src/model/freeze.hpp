// Glob patterns of parameter names that are not trained.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cleave::model {

/// True when `pattern` matches all of `text`: `*` is any run of characters, dots too, `?` any one character.
[[nodiscard]] bool matches_glob(std::string_view pattern, std::string_view text);

[[nodiscard]] bool matches_any(const std::vector<std::string>& patterns, std::string_view text);

}  // namespace cleave::model
