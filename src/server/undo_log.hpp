// UndoLog: parameters as they were before their update, for as long as the step may have to be run again.
//
// A device that is found out late in a step may have had a part in gradients that were used already: only then is there
// anything to put back. Where updates begin after the last block has come, as where gradients are clipped, nothing is
// ever kept.
#pragma once

#include <algorithm>
#include <vector>

#include "cleave/server/parameter_store.hpp"

namespace cleave::server {

class UndoLog {
 public:
  /// A step begins. `keeps`: it may have to be undone, until close().
  void open(bool keeps) {
    before_.clear();
    keeps_ = keeps;
  }
  /// From now on it stays as it is.
  void close() { open(false); }

  /// A parameter is about to be updated, once a step.
  void note(Parameter& parameter) {
    if (!keeps_) return;
    before_.push_back({.parameter = &parameter,
                       .value = {parameter.value.begin(), parameter.value.end()},
                       .exp_avg = parameter.exp_avg,
                       .exp_avg_sq = parameter.exp_avg_sq});
  }

  /// Puts all of them back.
  void undo() {
    for (const Before& before : before_) {
      std::ranges::copy(before.value, before.parameter->value.begin());
      std::ranges::copy(before.exp_avg, before.parameter->exp_avg.begin());
      std::ranges::copy(before.exp_avg_sq, before.parameter->exp_avg_sq.begin());
    }
    close();
  }

 private:
  struct Before {
    Parameter* parameter;
    std::vector<float> value, exp_avg, exp_avg_sq;
  };
  std::vector<Before> before_;
  bool keeps_ = false;
};

}  // namespace cleave::server
