// Names in folders that survive a loss of power: what is created, linked or removed here is synced before the call
// returns. Used for the folders of runs and for what is moved aside in them.
#pragma once

#include <filesystem>

namespace cleave {

/// Syncs a folder: names that were made, changed and removed in it so far are safe.
/// Errors: EnvironmentError. A file system that cannot sync folders is no error.
void sync_folder(const std::filesystem::path& folder);

/// Creates a folder and what is missing above it; each new name is synced in the folder above it.
/// Errors: EnvironmentError.
void make_folders(const std::filesystem::path& folder);

/// Makes `to` a second name of the file `from`, or a copy where the file system has no links between the two places. An
/// old file at `to` is replaced in one step. Requires: `from` is not changed in place later. Errors: EnvironmentError.
void link_or_copy(const std::filesystem::path& from, const std::filesystem::path& to);

/// Copies a file; `to` is whole or absent. Errors: EnvironmentError.
void copy_file_whole(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace cleave
