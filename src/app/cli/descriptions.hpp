// Texts made of the declarations that the program itself obeys: manual page, shell completion, reference of inputs.
//
// `cleave describe` prints them; the build installs the first two, docs/inputs.md is the third. So none of them can say
// other than what the program does.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace cleave::app {

/// Manual page (section 1, troff) of the program and its commands.
[[nodiscard]] std::string manual_page(const CLI::App& program);

/// Completion for bash: commands, options, words that an option is limited to; otherwise file names.
[[nodiscard]] std::string bash_completion(const CLI::App& program);

/// docs/inputs.md: every key of an input, with type, unit, default, range and meaning.
[[nodiscard]] std::string input_reference();

}  // namespace cleave::app
