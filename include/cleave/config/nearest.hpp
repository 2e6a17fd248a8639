// Which name was meant: hints about words of an input or of the command line that are none of the names there are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cleave::config {

/// The name nearest to `word` if it is near enough to be meant (at most a third of the letters off); else empty.
[[nodiscard]] std::string nearest(std::string_view word, const std::vector<std::string>& names);

/// "one of a, b, c".
[[nodiscard]] std::string one_of(const std::vector<std::string>& names);

/// The hint to a word that is none of `names`: "did you mean opt-13b?", or where none is near "one of a, b, c".
[[nodiscard]] std::string hint_for(std::string_view word, const std::vector<std::string>& names);

}  // namespace cleave::config
