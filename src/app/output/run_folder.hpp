// The folder of a run and what is written into it while the run goes on (docs/interface.md, "Output of a run").
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cleave/server/trainer.hpp"
#include "cleave/telemetry/json_lines.hpp"
#include "output/folder_lock.hpp"
#include "output/set_aside.hpp"
#include "output/verdict.hpp"

namespace cleave::app {

class RunFolder {
 public:
  /// Opens the folder of a new run: an earlier run or simulation in it is moved aside to FOLDER.1, FOLDER.2, ... first,
  /// so that nothing is lost and nothing is mixed. Errors: EnvironmentError, also when another run writes there.
  [[nodiscard]] static RunFolder create(const std::filesystem::path& folder);
  /// Opens the folder of a run that goes on: a verdict that the process before left is carried out first, then what
  /// belongs to another branch is set aside (begin_branch), then lines of later steps are dropped. `held`: the folder's
  /// lock, where the caller has it already. Errors: as create(); also when the checkpoint is not there any more, with
  /// nothing moved.
  [[nodiscard]] static RunFolder resume(const std::filesystem::path& folder, const Continuation& how,
                                        std::optional<FolderLock> held = {});

  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }
  /// Where an earlier run, or another branch, was moved to, if there was one.
  [[nodiscard]] const std::optional<std::filesystem::path>& moved() const { return moved_; }
  /// The checkpoint that the run goes on from, under its name in this folder.
  [[nodiscard]] const std::optional<std::filesystem::path>& resumed_from() const { return resumed_from_; }
  /// Lines of metrics.jsonl that resume() could not read, and left out.
  [[nodiscard]] std::int64_t damaged_lines() const { return damaged_lines_; }
  /// The verdict that resume() carried out, and the checkpoints' names since.
  struct CarriedOut {
    Verdict verdict;
    std::vector<std::filesystem::path> aside;
  };
  [[nodiscard]] const std::optional<CarriedOut>& carried_out() const { return carried_out_; }

  /// Whether its files are where they were: somebody may have moved or removed the folder, and with it those that are
  /// open, such as metrics.jsonl.
  [[nodiscard]] bool is_there() const { return lock_.is_of(folder_); }
  /// Errors: EnvironmentError where another run has made the folder anew: nothing of this one may go there.
  void require_own() const;

  void store_input(const std::string& effective) const;
  /// ranks.json: the server first.
  void store_ranks(const std::vector<server::RankInfo>& ranks) const;
  /// profile.json: real time of the training steps by phase, and by phase and type of operation.
  void store_profile(const server::Profile& profile) const;
  /// verification.json: what was checked, what was found, and what that is worth (docs/security.md).
  void store_verification(const server::Verification& terms, const server::VerificationReport& report,
                          const std::vector<DeviceId>& left_out) const;
  /// One line of metrics.jsonl. `step` counts updates done. Errors: EnvironmentError; the line is kept and written
  /// before the next one, or by sync_metrics().
  void append(std::int64_t step, std::int64_t tokens, const server::StepResult& result, std::optional<double> val_loss);
  /// The steps after `step` are taken back because of these devices, and their checkpoints have other names: moves
  /// their lines from metrics.jsonl to one of taken_back.jsonl; then there is no verdict any more. The next append()
  /// says how many lines there were, and their time. Errors: EnvironmentError.
  void take_back(std::int64_t step, const std::vector<DeviceId>& devices);
  /// The lines so far survive a loss of power, those too that could not be written when they came. Errors:
  /// EnvironmentError.
  void sync_metrics();

 private:
  RunFolder(std::filesystem::path folder, FolderLock lock, telemetry::JsonLines metrics)
      : folder_(std::move(folder)), lock_(std::move(lock)), metrics_(std::move(metrics)) {}
  void write_held_back();

  std::filesystem::path folder_;
  FolderLock lock_;
  std::optional<std::filesystem::path> moved_, resumed_from_;
  std::optional<CarriedOut> carried_out_;
  telemetry::JsonLines metrics_;
  std::vector<telemetry::JsonObject> held_back_;
  std::int64_t damaged_lines_ = 0;
  std::int64_t taken_back_ = 0;  // lines since the last append()
  Seconds taken_back_time_{0};
};

}  // namespace cleave::app
