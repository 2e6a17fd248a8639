// Results that would replace what they are made of.
#pragma once

#include <filesystem>

namespace cleave::app {

/// Errors: InputError where both names are of one file, either by a link.
void refuse_one_file(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace cleave::app
