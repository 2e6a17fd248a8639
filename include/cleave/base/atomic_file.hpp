// A file that is whole or absent: written under a temporary name, synced, then renamed over the old one.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace cleave {

/// Calls `write(temporary)` to fill a new, empty temporary file beside `path` (PATH.tmp), syncs it, renames it to
/// `path`, syncs the folder. A link that somebody left under the temporary name is not followed. On any failure the
/// temporary file is removed and `path` is as it was. Errors: EnvironmentError, also where `path` is a device, a pipe
/// or a socket, or a link to one; or whatever `write` throws.
void replace_file(const std::filesystem::path& path, const std::function<void(const std::filesystem::path&)>& write);

/// replace_file for text at hand. A device, a pipe or a socket is written to, and stays what it is.
void replace_file(const std::filesystem::path& path, std::string_view contents);

/// Reads a whole file. Errors: EnvironmentError.
[[nodiscard]] std::string read_file(const std::filesystem::path& path);

}  // namespace cleave
