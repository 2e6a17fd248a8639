// LossBook: what is lost with devices that leave at one moment, stage by stage, until a record of it is made.
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
  /// What one stage has lost at one moment.
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

  /// Makes a record of each stage that lost something since the last call. `name_of(stage)` is its name in the report.
  /// Returns the numbers of the records.
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
  /// The number of a stage's last record; kNoLoss if nothing was lost there (an owner that made way for a replica is
  /// no loss).
  [[nodiscard]] int of(std::int32_t stage) const {
    const auto found = last_.find(stage);
    return found == last_.end() ? kNoLoss : found->second;
  }
  [[nodiscard]] std::int32_t stage_of(std::size_t record) const { return stages_[record]; }

  /// Moments since clear() at which devices have left.
  [[nodiscard]] std::int64_t moments() const { return moments_; }

  /// Sums of an owner are lost. `of_server`: time that the server would need to make them.
  void sums_lost(Seconds of_server) { sums_ += of_server; }
  /// The sum of these times since clear().
  [[nodiscard]] Seconds sums_lost() const { return sums_; }

  [[nodiscard]] Losses& records() { return records_; }

 private:
  std::map<std::int32_t, Hit> hits_;  // by stage, at this moment
  std::map<std::int32_t, int> last_;  // by stage: its last record
  std::vector<std::int32_t> stages_;  // of each record
  Seconds silent_, sums_;
  Losses records_;
  std::int64_t moments_ = 0;
};

}  // namespace cleave::sched::stages
