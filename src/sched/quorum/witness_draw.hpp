// WitnessDraw: which tasklets have a witness, and who it is: functions of a secret, so that no device foresees them.
//
// A witness is drawn among all devices that may be asked, each with a chance in proportion to how soon it would be
// done: after the witnesses that it has in hand, with what other work has left of its downlink so far. Witnesses need
// downlinks and processors alone, so the step takes hardly longer where they go to devices that wait for their uplinks.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "cleave/sched/quorum_fleet.hpp"

namespace cleave::sched {

/// A number in [0, 1) that devices do not foresee: a function of the secret, of what is drawn for, and of the draw.
[[nodiscard]] double secret_uniform(const SipKey& secret, std::int64_t subject, std::int64_t draw);
/// Whether two devices, each of another id, may be paired: they are of no common host, owner or group.
[[nodiscard]] bool are_apart(const QuorumOptions& options, const fleet::DeviceProfile& first,
                             const fleet::DeviceProfile& second);

class WitnessDraw {
 public:
  struct Witness {
    plan::TaskletPlan piece;
    Seconds takes;  ///< on that device, if it has nothing else to do
  };

  /// Both must outlive it.
  WitnessDraw(const Fleet& fleet, const QuorumOptions& options) : fleet_(fleet), options_(options) {}

  void begin_step(const model::StepGraph& graph);
  /// Whether a tasklet has a witness.
  [[nodiscard]] bool is_drawn(TaskletId tasklet) const;
  /// The second device that is asked first (`attempt` 1) or after others failed to answer, which has it in hand from
  /// now on; empty: nobody may be asked, or has room.
  [[nodiscard]] std::optional<Witness> draw(const Tasklet& tasklet, std::int64_t attempt);
  /// A device has a witness in hand no more.
  void give_back(DeviceId device, Seconds takes) { in_hand_[device] -= takes; }

  /// It is asked no more.
  void distrust(DeviceId device) { distrusted_.insert(device); }
  /// So much of a device's memory holds columns for others of its tasklets.
  void columns_come(DeviceId device, Bytes bytes) { columns_[device] += bytes; }
  void columns_go(DeviceId device, Bytes bytes) { columns_[device] -= bytes; }

 private:
  struct Candidate {
    fleet::DeviceProfile profile;
    BytesPerSecond spare_down;  // what other work has left of its downlink so far
  };

  [[nodiscard]] double uniform(std::int64_t tasklet, std::int64_t index) const {
    return secret_uniform(options_.secret, tasklet, index);
  }
  [[nodiscard]] bool may_witness(const fleet::DeviceProfile& first, const fleet::DeviceProfile& second) const;
  [[nodiscard]] std::optional<plan::TaskletPlan> piece_for(const Tasklet& tasklet, const fleet::DeviceProfile& device);
  void renew_candidates();

  const Fleet& fleet_;
  const QuorumOptions& options_;
  const model::StepGraph* graph_ = nullptr;
  std::set<DeviceId> distrusted_;
  std::unordered_map<DeviceId, Bytes> columns_;
  std::unordered_map<DeviceId, Seconds> in_hand_;
  std::vector<Candidate> candidates_;                         // that are there
  std::unordered_map<DeviceId, fleet::DeviceProfile> known_;  // whoever was ever there
  std::uint64_t roster_ = 0;
  std::size_t draws_ = 0;  // since candidates were looked at
  BytesPerSecond quick_down_, quick_spare_;
  FlopsPerSecond quick_compute_;
};

}  // namespace cleave::sched
