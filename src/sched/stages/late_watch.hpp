// Who is late: what every device's links and processor did while it had work, beside what they do at the rates that are
// believed. Values in, values out.
//
// A device that has work keeps at least one of its three resources busy, so what they carried adds up to the time that
// went by, but for messages on their way and for waiting at the server's interface. Both are left out of that time.
// Forecasts of when something will be done are not asked: queues, and what goes ahead of what, delay answers, but no
// device. So a fleet that does as it declares has no late device, and the quotient says by what factor one is.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cleave/fleet/profile.hpp"
#include "cleave/plan/panels.hpp"
#include "cleave/timing/stream.hpp"

namespace cleave::sched::stages {

/// A device that is late.
struct LateDevice {
  std::int32_t device = 0;
  double factor = 0;  ///< it is slower by this, at least
  double likely = 0;  ///< and by this, if its busiest resource had work all the time and is at its last panel still
};

class LateWatch {
 public:
  /// By which a device must be slower than believed, and than others are, to be late.
  static constexpr double kLate = 3;
  /// While more than this share of the devices that have worked is late, what is believed is wrong, not they.
  static constexpr double kMost = 1.0 / 3;

  /// All devices have nothing to do that was asked of them now. `every`: time between two looks.
  void begin(Seconds now, Seconds every, const fleet::ServerProfile& server,
             std::span<const timing::DeviceState> there);
  /// A device is there from now on; what it still has to do is seen at the next look.
  void open(std::int32_t device, Seconds now);
  /// A tasklet was sent. `profile`: its device at the rates that are believed. Returns the seconds that it computes.
  double sent(const fleet::DeviceProfile& profile, const plan::PanelRun& run, bool wants_answer, Seconds now);
  /// It was answered: the device computed it, for so many seconds; none: it is not wanted any more, and may still be.
  void answered(std::int32_t device, double computes, Seconds now);

  /// How long a device took for what it answered; false: not far longer than it should have.
  bool measured(const fleet::DeviceProfile& profile, const timing::Measured& measured);

  [[nodiscard]] Seconds next_look() const { return next_; }
  /// The largest factor of any device since begin(): 1 at most where all do as is believed.
  [[nodiscard]] double worst() const { return worst_; }
  /// Who is late, the worst first. `there`: devices with what they still have to do, at rates that are believed.
  [[nodiscard]] std::vector<LateDevice> look(Seconds now, std::span<const timing::DeviceState> there);

 private:
  static constexpr std::size_t kResources = 3;
  using Times = std::array<double, kResources>;  // seconds down, of the processor, up
  struct Device {
    bool open = false, unseen = false;  // is there; what it had to do when it was opened is not known
    std::int64_t in_hand = 0;           // tasklets that are to be answered
    bool answers = false;               // since the window began
    double messages = 0;                // in the window: on their way, while nothing else was in hand
    std::int64_t slow = 0;              // answers in a row that took too long
    double slower = 0;                  // by what factor, the least of them
    double since = 0;                   // the window
    double idle = 0, idle_from = 0;     // in it: without tasklets; since when
    double idle_before = 0;             // `idle` at the last look
    double latency = 0;
    double factor = 0;                  // at the last look at which it had worked
    bool loads = false;                 // since the last look something was to come down all the time
    double looked = 0;                  // the last look
    double computes = 0;                // seconds, of all that it has not answered
    double to_come = 0;                 // of them, of what was not down when the window began
    double backlog = 0;                 // at most, of what is down, if the device does as is believed
    double at_processor = 0;            // that, when the window began
    double port = 0;                    // the interface's time when the window began
    Times before{}, sent{}, largest{};  // to do when it began; given since then; panels
    Times seen{}, since_look{};         // to do at the last look; given since then
  };
  Device& at(std::int32_t device);
  static Times still(const timing::DeviceState& state) {
    return {state.down_busy.value(), state.compute_busy.value(), state.up_busy.value()};
  }
  void begin_window(Device& of, const Times& to_do, Seconds now) const;
  // What a device did since the last look.
  void count(Device& of, const timing::DeviceState& state, Seconds now);

  std::vector<Device> devices_;
  fleet::ServerProfile server_;
  double port_ = 0;  // seconds for which the server's interface was taken
  Seconds every_, next_;
  double worst_ = 0;
};

}  // namespace cleave::sched::stages
