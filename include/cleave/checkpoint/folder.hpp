// The checkpoints of a run, in its folder: `checkpoint-STEP.h5`. Which is newest, which is whole, which may go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
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

/// checkpoint-STEP.h5, or what set_aside_after() makes of it.
[[nodiscard]] bool is_checkpoint_name(const std::string& name);

/// All checkpoints by name, highest step first; none where there is no such folder. They are not opened.
/// Errors: EnvironmentError for a folder that cannot be listed.
[[nodiscard]] std::vector<CheckpointFile> find_checkpoints(const std::filesystem::path& folder);

/// The checkpoint with the highest step, at most `up_to`, among those that can be read and whose every checksum is
/// right. Errors: EnvironmentError for a folder that cannot be listed.
[[nodiscard]] NewestCheckpoint newest_whole_checkpoint(const std::filesystem::path& folder,
                                                       std::int64_t up_to = std::numeric_limits<std::int64_t>::max());

/// Renames the checkpoints of steps after `step` to checkpoint-STEP.h5.taken_back, so that nobody goes on from them,
/// and durably. Returns the new names, newest first. Errors: EnvironmentError.
std::vector<std::filesystem::path> set_aside_after(const std::filesystem::path& folder, std::int64_t step);

/// Which checkpoints of a folder one process may delete: those of the branch that it goes on with. They are what lay in
/// the folder when it began, and what it has written since, in that order; a file that came there otherwise is left
/// alone, whatever its number.
class Pruner {
 public:
  /// `resumed_from`: the file that the process goes on from, which it never deletes.
  /// Errors: EnvironmentError for a folder that cannot be listed.
  explicit Pruner(std::filesystem::path folder, std::optional<std::filesystem::path> resumed_from = {});

  /// To be called when a checkpoint is in its place.
  void wrote(const std::filesystem::path& file, std::int64_t step);

  /// The steps after `step` are taken back: set_aside_after() for its folder.
  std::vector<std::filesystem::path> set_aside_after(std::int64_t step);

  /// Deletes all but the last `keep` of the branch, and what writers that were killed left behind; never the last whole
  /// one, nor the one that was resumed from. Where training may go back to `back_to` it keeps the last one from there
  /// or before, and the first one after that, which takes its place once training may not go back as far. Returns what
  /// it deleted, oldest last. Nothing else may write to the folder meanwhile. Requires: keep >= 1. Errors:
  /// EnvironmentError.
  std::vector<std::filesystem::path> prune(std::int64_t keep, std::optional<std::int64_t> back_to = {});

 private:
  std::filesystem::path folder_;
  std::optional<std::filesystem::path> resumed_from_;
  std::vector<CheckpointFile> branch_;  // oldest first
};

}  // namespace cleave::checkpoint
