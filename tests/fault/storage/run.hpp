// A training run of a tiny model in a child process, with the program's own commands: its exit code, what it said, and
// what it did to files.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "calls.hpp"
#include "cleave/checkpoint/snapshot.hpp"

namespace cleave::faults {

namespace fs = std::filesystem;

struct Ended {
  int code = 0;      ///< exit code; 128 + signal where one ended it
  std::string said;  ///< on standard error and output
  [[nodiscard]] bool hung() const;
};

/// A folder for runs, in memory where there is one (/dev/shm), with a text and an input in it; gone with the object.
class Workshop {
 public:
  Workshop();
  ~Workshop();
  Workshop(const Workshop&) = delete;
  Workshop& operator=(const Workshop&) = delete;

  [[nodiscard]] const fs::path& top() const { return top_; }
  [[nodiscard]] fs::path input() const { return top_ / "input.yaml"; }
  [[nodiscard]] Ledger& ledger() { return ledger_; }

  /// `cleave train INPUT --quiet ARGUMENT...` in a child process, armed with `plan`.
  Ended train(const std::vector<std::string>& arguments, const Plan& plan = {});

 private:
  fs::path top_;
  Ledger ledger_;
};

/// Lines of the log that say "saved FILE" and "deleted FILE", in order, from recorded steps.
struct Said {
  enum class What { saved, deleted, resumed } what;
  std::string file;
  bool operator==(const Said&) const = default;
};
[[nodiscard]] std::vector<Said> reports(const Step& step);

/// The model's tensors of a checkpoint as one number. Errors: InputError where it is not whole.
[[nodiscard]] std::uint64_t bits_of(const fs::path& checkpoint);

/// Steps in metrics.jsonl, in order; a torn last line is left out.
[[nodiscard]] std::vector<std::int64_t> metric_steps(const fs::path& run);
/// Seconds of the model that the first `steps` lines say, in all.
[[nodiscard]] double emulated_time(const fs::path& run, int steps);

/// Whether the thorough version was asked for: CLEAVE_FAULT_FULL in the environment.
[[nodiscard]] bool thorough();

}  // namespace cleave::faults
