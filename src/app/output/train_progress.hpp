// TrainProgress: what a training run says of itself while it goes: a plain line for pipes and logs, and a small panel
// with the loss's course for terminals.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cleave/server/trainer.hpp"
#include "output/fleet_status.hpp"

namespace cleave::app {

class TrainProgress {
 public:
  /// `steps`: of the whole run; `first`: done before this part of it; `tokens`: of a step.
  TrainProgress(std::int64_t steps, std::int64_t first, std::int64_t tokens)
      : steps_(steps), first_(first), tokens_(tokens) {}

  /// Takes the figures of `step` (1-based), after `spent` real seconds of training.
  void note(std::int64_t step, const server::StepResult& result, Seconds spent, FleetStatus& fleet);
  /// The steps after `step` are taken back.
  void take_back(std::int64_t step) { first_ = std::min(first_, step); }
  void note_validation(double loss) { validation_ = loss; }

  /// `step 4/200  loss 2.95 ...  8 devices used, 8 up  busiest ...  ETA 3 s`
  [[nodiscard]] std::string line() const;
  /// The same in three lines, with a bar and the loss's course.
  [[nodiscard]] std::vector<std::string> panel() const;

 private:
  std::int64_t steps_, first_, tokens_;
  std::int64_t step_ = 0;
  server::StepResult last_{};
  Seconds left_{0};
  double tokens_per_s_ = 0, validation_ = -1;
  std::string devices_, busiest_;
  std::vector<double> losses_;
};

}  // namespace cleave::app
