// What is wrong with a command line, in words of this program: CLI11 speaks of its own names ("arguments is required").
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace cleave::app {

/// `error`: what app.parse(argc, argv) has thrown. Two lines without the last line end: what is wrong, with a hint, and
/// where help is.
[[nodiscard]] std::string say_usage_error(const CLI::App& app, const CLI::ParseError& error, int argc,
                                          const char* const* argv);

}  // namespace cleave::app
