// LossBook: what devices that leave at one moment had, stage by stage, until a record is made of it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "recovery/losses.hpp"
#include "stages/run_state.hpp"

namespace cleave::sched::stages {

class LossBook {
 public:
  /// Of one stage, at one moment.
  struct Hit {
    std::set<std::int32_t> devices;
    std::int64_t tasklets = 0;  ///< in flight
  };

  void clear() {
    hits_.clear();
    last_.clear();
    records_.clear();
    silent_ = sums_ = Seconds(0);
    moments_ = 0;
  }

  // As devices leave.
  void silent_for(Seconds time) { silent_ = std::max(silent_, time); }
  void device_lost(std::int32_t stage, std::int32_t device) { hits_[stage].devices.insert(device); }
  void tasklet_lost(std::int32_t stage, std::int32_t device) {
    hits_[stage].devices.insert(device);
    ++hits_[stage].tasklets;
  }

  /// Makes records of what was noted since the last call; `name_of(stage)` names them. Returns their numbers.
  template <class NameOf>
  std::vector<int> record(Seconds now, OpId op, NameOf name_of) {
    std::vector<int> numbers;
    ++moments_;
    for (const auto& [stage, hit] : hits_) {
      const int number = records_.open(op, name_of(stage), now, silent_, std::ssize(hit.devices), hit.tasklets);
      last_[stage] = number;
      stages_.resize(static_cast<std::size_t>(number) + 1);
      stages_[static_cast<std::size_t>(number)] = stage;
      numbers.push_back(number);
    }
    hits_.clear();
    silent_ = Seconds(0);
    return numbers;
  }
  /// The last record of a stage, or kNoLoss: of what made way for something else, nothing was lost.
  [[nodiscard]] int of(std::int32_t stage) const {
    const auto found = last_.find(stage);
    return found == last_.end() ? kNoLoss : found->second;
  }
  [[nodiscard]] std::int32_t stage_of(std::size_t record) const { return stages_[record]; }

  /// How often devices have left since clear(); those that left at one moment count once.
  [[nodiscard]] std::int64_t moments() const { return moments_; }

  /// Sums of an owner that the server would need so long for.
  void sums_lost(Seconds of_server) { sums_ += of_server; }
  /// All of them since clear().
  [[nodiscard]] Seconds sums_lost() const { return sums_; }

  [[nodiscard]] Losses& records() { return records_; }

 private:
  std::map<std::int32_t, Hit> hits_;  // by stage, of this moment
  std::map<std::int32_t, int> last_;
  std::vector<std::int32_t> stages_;  // of the records
  Seconds silent_, sums_;
  Losses records_;
  std::int64_t moments_ = 0;
};

}  // namespace cleave::sched::stages
