// What lies in a run's folder and does not belong to the branch that goes on there is moved aside, never deleted.
//
// A branch is a run and what went on from it: the checkpoints that follow each other, and one line of metrics a step.
// Going back to an older checkpoint, or on from one of another folder, begins a new branch. The old one gets a folder
// of its own, FOLDER.1, FOLDER.2, ..., from which it can be resumed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace cleave::app {

/// Moves an earlier run out of `folder` to free_name_beside() it, and returns that: by the folder's own name where
/// nothing else lies in it, which leaves no folder; else, and where the folder is a link or a file system of its own,
/// file by file, and what no run writes stays (somebody's inputs, texts, or runs in folders of their own). A crash
/// leaves every checkpoint in one of the two folders. Requires: the folder exists, and is locked. Errors:
/// EnvironmentError.
[[nodiscard]] std::filesystem::path move_run(const std::filesystem::path& folder);

/// Where a run goes on.
struct Continuation {
  std::filesystem::path from;  ///< a checkpoint, whole
  std::int64_t step = 0;       ///< updates done in it
  /// The steps after it will be done again to the same bits: `auto`, with the settings it was trained with.
  bool same_run = false;
};

struct Branched {
  std::filesystem::path from;                      ///< the checkpoint under its name in the folder
  std::optional<std::filesystem::path> set_aside;  ///< the folder that the other branch is in now
};

/// FOLDER.N with the lowest N that is free: beside what a link leads to, and within a folder that is a file system of
/// its own (FOLDER/FOLDER.N). Errors: std::filesystem::filesystem_error for a link that leads nowhere.
[[nodiscard]] std::filesystem::path free_name_beside(const std::filesystem::path& folder);

/// Makes `folder` one in which the branch of `how` is the only one: later checkpoints, or all of them where `how.from`
/// is of another folder, go to a folder beside it, with a copy of the other files of a run; the checkpoint itself is
/// there under its name. Metrics after `how.step` are the caller's to cut. A crash leaves every checkpoint in one of
/// the two folders, and the newest one in `folder` is of the old branch until all of the new one is in place. Requires:
/// the folder exists, and is locked. Errors: EnvironmentError, with nothing of `folder` deleted.
[[nodiscard]] Branched begin_branch(const std::filesystem::path& folder, const Continuation& how);

}  // namespace cleave::app
