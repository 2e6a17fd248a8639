// LateDevices: devices that turn out far slower than believed, or say nothing at all. Their work is given to others.
//
// Whether a device is late is judged by what it did itself (late_watch.hpp), never by a forecast of when something
// should be done. A late device keeps its work while the step does not wait for it, or while others would not be done
// sooner. Otherwise it is dismissed: it counts as lost until the step ends, stand-ins do its work, its answers are
// dropped, and the next step is planned with the rates that it showed.
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

  /// Before a step is planned: leaves out dismissed devices that are still busy with work of the last step. Returns
  /// whether other devices than before are left out.
  bool leave_out();
  [[nodiscard]] bool leaves_any_out() const { return !left_out_.empty(); }
  [[nodiscard]] bool is_left_out(DeviceId id) const { return left_out_.contains(static_cast<std::int32_t>(id.value)); }
  void leave_none_out() { left_out_.clear(); }
  /// A device is there again, with nothing of what it was late with.
  void came_back(DeviceId id) {
    left_out_.erase(static_cast<std::int32_t>(id.value));
    dismissed_.erase(static_cast<std::int32_t>(id.value));
  }
  void begin();

  /// A device is watched from now on.
  void open(std::int32_t id);
  /// A device was sent a tasklet. Returns the seconds of processor that it should take; 0 where nobody is watched.
  double sent(std::int32_t id, const plan::PanelRun& run, bool wants_answer);
  /// `computes`: as sent() returned it; 0 where the answer is not wanted any more.
  void answered(std::int32_t id, double computes);
  /// Takes the times of an answer: for the estimated rates of its device, and as a sign that it is late.
  void measure(const Event& event);

  [[nodiscard]] Seconds next_look() const { return watch_.next_look(); }
  /// Finds late devices, and dismisses those for which the step would wait longer than for others in their place.
  void look();
  /// Gives dismissed devices work again, where nobody else can do it.
  void take_back();

  [[nodiscard]] double worst() const { return watch_.worst(); }
  [[nodiscard]] const std::map<std::int32_t, double>& dismissed() const { return dismissed_; }
  [[nodiscard]] const std::set<std::int32_t>& slowed() const { return slowed_; }

 private:
  // Devices that were dismissed or left out, and still have much of the last step's work to do.
  std::set<std::int32_t> still_at_work() const;
  // Seconds from now until a late device would have done all its work.
  double end_of(const LateDevice& one, const plan::DeviceState& state);
  // Removes from `late` the devices that keep their work: nobody else has room for it, or would be done sooner.
  // `ends`: end_of() each of `late`.
  void keep_unless_sooner(std::vector<LateDevice>& late, std::vector<double>& ends);
  // Whether devices that are not late have room for all stages. If not, `who` is set: the index in `late` of the least
  // late replica of a stage for which nobody else has room.
  bool others_can(const std::vector<LateDevice>& late, std::size_t& who);
  // From now on the device's rates count as divided by `factor`, where devices are chosen.
  void slow_down(std::int32_t id, double factor);
  // A device has answered nothing yet: its weights may take `in` from now.
  void expect_weights(std::int32_t id, Seconds in);
  // The next step is planned with the rates that the device showed, until its answers tell more.
  void believe(const LateDevice& one);

  StageRun& run_;
  LateWatch watch_;
  std::map<std::int32_t, double> dismissed_;  // devices that lost their work to others for the step, and their factors
  std::map<std::int32_t, bool> guessed_;  // devices whose rates are a guess of believe(): whether they answered since
  std::set<std::int32_t> left_out_;       // devices that this step is planned without
  std::set<std::int32_t> taken_back_;     // dismissed devices that got work again
  std::set<std::int32_t> slowed_;         // late devices that keep their work
};

}  // namespace cleave::sched::stages
