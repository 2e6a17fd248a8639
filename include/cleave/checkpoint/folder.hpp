// The checkpoints of a run, in its folder: `checkpoint-STEP.h5`. Which is newest, which is whole, which may go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace cleave::checkpoint {

struct CheckpointFile {
  std::filesystem::path path;
  std::int64_t step = 0;
  bool operator==(const CheckpointFile&) const = default;
};

/// A checkpoint that cannot be used, and why.
struct DamagedCheckpoint {
  std::filesystem::path path;
  std::string reason;
};

struct NewestCheckpoint {
  std::optional<CheckpointFile> found;
  std::vector<DamagedCheckpoint> skipped;  ///< newer than `found`, newest first
};

/// FOLDER/checkpoint-STEP.h5
[[nodiscard]] std::filesystem::path checkpoint_path(const std::filesystem::path& folder, std::int64_t step);

/// All checkpoints by name, highest step first; none where there is no such folder. They are not opened.
/// Errors: EnvironmentError for a folder that cannot be listed.
[[nodiscard]] std::vector<CheckpointFile> find_checkpoints(const std::filesystem::path& folder);

/// The checkpoint with the highest step among those that can be read and whose every checksum is right.
/// Errors: EnvironmentError for a folder that cannot be listed.
[[nodiscard]] NewestCheckpoint newest_whole_checkpoint(const std::filesystem::path& folder);

/// Deletes all but the newest `keep` checkpoints, and what writers that were killed left behind; never the newest
/// whole one. Returns what it deleted. Nothing else may write to the folder meanwhile.
/// Requires: keep >= 1. Errors: EnvironmentError.
std::vector<std::filesystem::path> prune_checkpoints(const std::filesystem::path& folder, std::int64_t keep);

}  // namespace cleave::checkpoint
