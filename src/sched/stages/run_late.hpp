// LateDevices: devices that turn out far slower than believed, or say nothing at all. What they have is given to
// others.
//
// Late is who is late by what itself did (late_watch.hpp), never by a forecast of when something should be done. Such a
// device is left alone as long as the step does not wait for it, or others would not be sooner. Else it counts as lost
// until the step ends: stand-ins do what it held, what it still answers is dropped, and the next step is planned for
// what it was seen to do.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "cleave/sched/fleet.hpp"
#include "stages/late_watch.hpp"
#include "stages/run_state.hpp"

namespace cleave::sched::stages {

struct StageRun;

class LateDevices {
 public:
  explicit LateDevices(StageRun& run) : run_(run) {}

  /// Before a step is planned: who still works at what was not wanted any more is left out. True: not the same devices
  /// as before.
  bool leave_out();
  [[nodiscard]] bool leaves_any_out() const { return !left_out_.empty(); }
  [[nodiscard]] bool is_left_out(DeviceId id) const { return left_out_.contains(static_cast<std::int32_t>(id.value)); }
  void leave_none_out() { left_out_.clear(); }
  void came_back(DeviceId id) { left_out_.erase(static_cast<std::int32_t>(id.value)); }
  void begin();

  /// What a device is given and does is watched.
  void open(std::int32_t id);
  /// Returns the seconds that it computes; 0 where nobody is watched.
  double sent(std::int32_t id, const plan::PanelRun& run, bool wants_answer);
  void answered(std::int32_t id, double computes);
  /// What a device's rates are, and whether it took far too long.
  void measure(const Event& event);

  [[nodiscard]] Seconds next_look() const { return watch_.next_look(); }
  /// Those whose work would decide when the step ends are treated as lost until it has ended.
  void look();
  /// Those that were dismissed get work again, where nobody else can do it.
  void take_back();

  [[nodiscard]] double worst() const { return watch_.worst(); }
  [[nodiscard]] const std::map<std::int32_t, double>& dismissed() const { return dismissed_; }
  [[nodiscard]] const std::set<std::int32_t>& slowed() const { return slowed_; }

 private:
  // Of those dismissed in the last step, who will take a while yet to be done with it.
  std::set<std::int32_t> still_at_work() const;
  // From now, until it would be done with what it has.
  double end_of(const LateDevice& one, const plan::DeviceState& state);
  // Takes out who keeps the work all the same: whoever has room would be later, or nobody has. `ends`: of each of
  // `late`.
  void keep_unless_sooner(std::vector<LateDevice>& late, std::vector<double>& ends);
  // `who`: the least late of those that are to blame.
  bool others_can(const std::vector<LateDevice>& late, std::size_t& who);
  // For whoever chooses devices.
  void slow_down(std::int32_t id, double factor);
  // Of a device that has answered nothing yet: its weights may be there so late.
  void expect_weights(std::int32_t id, Seconds in);
  // The next step is planned for what it did, until answers tell.
  void believe(const LateDevice& one);

  StageRun& run_;
  LateWatch watch_;
  // Devices that were late, and by what factor: others have what they had, for the rest of the step.
  std::map<std::int32_t, double> dismissed_;
  std::map<std::int32_t, bool> guessed_;  // devices whose rates were guessed at, and whether they have answered since
  std::set<std::int32_t> left_out_;       // they still work at what was not wanted any more when the step began
  std::set<std::int32_t> taken_back_;     // of the dismissed, again: nobody else had room
  std::set<std::int32_t> slowed_;         // devices that are late and keep what they have
};

}  // namespace cleave::sched::stages
