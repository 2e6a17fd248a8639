// The checkpoints of a run, in its folder: `checkpoint-STEP.h5`. Which is newest, which is whole, which may go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace cleave::checkpoint {

/// A checkpoint by its name; `step`: the number in the name.
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

/// The result of newest_whole_checkpoint().
struct NewestCheckpoint {
  std::optional<CheckpointFile> found;
  std::vector<DamagedCheckpoint> skipped;  ///< newer than `found`, newest first
};

/// FOLDER/checkpoint-STEP.h5
[[nodiscard]] std::filesystem::path checkpoint_path(const std::filesystem::path& folder, std::int64_t step);

/// checkpoint-STEP.h5, or what set_aside_after() makes of it.
[[nodiscard]] bool is_checkpoint_name(const std::string& name);

/// All checkpoints by name, highest step first; none where there is no such folder. They are not opened.
/// Errors: EnvironmentError for a folder that cannot be listed.
[[nodiscard]] std::vector<CheckpointFile> find_checkpoints(const std::filesystem::path& folder);

/// The checkpoint with the highest step, at most `up_to`, among those that can be read and whose every checksum is
/// right. Errors: EnvironmentError for a folder that cannot be listed, and for a checkpoint that this process may not
/// read: to go on from an older one would lose what is after it.
[[nodiscard]] NewestCheckpoint newest_whole_checkpoint(const std::filesystem::path& folder,
                                                       std::int64_t up_to = std::numeric_limits<std::int64_t>::max());

/// Renames the checkpoints of steps after `step`, durably, to checkpoint-STEP.h5.taken_back, so that no run resumes
/// from them. Returns the new names, newest first. Errors: EnvironmentError.
std::vector<std::filesystem::path> set_aside_after(const std::filesystem::path& folder, std::int64_t step);

/// Deletes old checkpoints of one process's run. It deletes only checkpoints of the process's branch: those that were
/// in the folder when the process began, and those that it has written since, in that order. It leaves any other file
/// alone, whatever its number.
class Pruner {
 public:
  /// `resumed_from`: the file that the process resumed from, which is never deleted.
  /// Errors: EnvironmentError for a folder that cannot be listed.
  explicit Pruner(std::filesystem::path folder, std::optional<std::filesystem::path> resumed_from = {});

  /// Adds a checkpoint that the process has written to the branch.
  void wrote(const std::filesystem::path& file, std::int64_t step);

  /// checkpoint::set_aside_after() for the folder; the branch then ends with `step`.
  std::vector<std::filesystem::path> set_aside_after(std::int64_t step);

  /// Deletes all but the last `keep` checkpoints of the branch, and temporary files of writers that were killed. It
  /// never deletes the last whole checkpoint, nor the one that was resumed from. `back_to`: the step that training may
  /// go back to; the last checkpoint at or before it is kept, and the first one after it, which replaces the former
  /// once training may not go back as far. Returns the deleted files, oldest last. Requires: keep >= 1; nothing else
  /// writes to the folder meanwhile. Errors: EnvironmentError.
  std::vector<std::filesystem::path> prune(std::int64_t keep, std::optional<std::int64_t> back_to = {});

 private:
  std::filesystem::path folder_;
  std::optional<std::filesystem::path> resumed_from_;
  std::vector<CheckpointFile> branch_;  // oldest first
};

}  // namespace cleave::checkpoint
