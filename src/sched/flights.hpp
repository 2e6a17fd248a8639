// Flights: the scheduler's book of tasklets that are in flight, and of which of them are copies of one block.
//
// A block is asked for once, or several times when its first device is late; the first answer counts and the others are
// forgotten. Nothing here decides; the scheduler does.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "by_tasklet.hpp"
#include "cleave/sched/fleet.hpp"

namespace cleave::sched {

struct InFlight {
  Tasklet tasklet;
  std::int64_t block = 0;  ///< number of the first tasklet that was sent for it
  Seconds sent, expected;  ///< when, and how long until the answer by the plan
  int loss = -1;           ///< index of the loss that it makes good
  int losses = 0;          ///< how often what it asks for was lost before, at most
};

class Flights {
 public:
  void clear() {
    flights_.clear();
    copies_.clear();
  }

  void add(const InFlight& flight) {
    flights_.add(flight.tasklet.id, flight);
    if (flight.block == flight.tasklet.id.value) return;
    std::vector<TaskletId>& ids = copies_[flight.block];
    if (ids.empty()) ids.emplace_back(flight.block);
    ids.push_back(flight.tasklet.id);
  }

  [[nodiscard]] const InFlight* find(TaskletId id) const { return flights_.find(id); }

  void remove(TaskletId id) {
    const InFlight* const found = flights_.find(id);
    if (found == nullptr) return;
    const auto copies = copies_.find(found->block);
    if (copies != copies_.end()) {
      std::erase(copies->second, id);
      if (copies->second.empty()) copies_.erase(copies);
    }
    flights_.remove(id);
  }

  [[nodiscard]] bool any() const { return flights_.size() > 0; }

  /// Tasklets in flight for the same block, without `flight` itself.
  [[nodiscard]] std::vector<TaskletId> others(const InFlight& flight) const {
    const auto copies = copies_.find(flight.block);
    if (copies == copies_.end()) return {};
    std::vector<TaskletId> ids = copies->second;
    std::erase(ids, flight.tasklet.id);
    return ids;
  }

  [[nodiscard]] std::vector<TaskletId> ids() const {
    std::vector<TaskletId> all;
    flights_.for_each([&](const InFlight& flight) { all.push_back(flight.tasklet.id); });
    return all;
  }
  [[nodiscard]] std::vector<InFlight> held_by(DeviceId device) const {
    return where([&](const InFlight& f) { return f.tasklet.piece.device == device; });
  }
  [[nodiscard]] std::vector<InFlight> of(OpId op) const {
    return where([&](const InFlight& f) { return f.tasklet.op == op; });
  }
  /// Predicted time of what each device holds that goes ahead of a tasklet at `priority`.
  [[nodiscard]] std::unordered_map<DeviceId, Seconds> taken_ahead_of(const Priority& priority) const {
    std::unordered_map<DeviceId, Seconds> taken;
    flights_.for_each([&](const InFlight& flight) {
      if (flight.tasklet.priority() < priority) taken[flight.tasklet.piece.device] += flight.tasklet.piece.time;
    });
    return taken;
  }

 private:
  template <class Wanted>
  [[nodiscard]] std::vector<InFlight> where(Wanted wanted) const {
    std::vector<InFlight> found;
    flights_.for_each([&](const InFlight& flight) {
      if (wanted(flight)) found.push_back(flight);
    });
    return found;
  }

  ByTasklet<InFlight> flights_;
  std::unordered_map<std::int64_t, std::vector<TaskletId>> copies_;  // of blocks that were asked for more than once
};

}  // namespace cleave::sched
