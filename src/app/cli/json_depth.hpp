// JSON that somebody else wrote: nlohmann's library copies, writes and destroys nested values by recursion.
#pragma once

#include <string_view>

namespace cleave::app {

/// Deeper than anything that cleave reads or writes.
inline constexpr int kDeepestJson = 64;

/// How deep brackets are nested, outside of strings. Example: 2 of {"a": [1, "]"]}.
/// The library's parser tells a callback the depth, too; but with a callback, and objects that keep their order
/// (ordered_json), version 3.11.2 crashes on valid text.
[[nodiscard]] int json_depth(std::string_view text);

}  // namespace cleave::app
