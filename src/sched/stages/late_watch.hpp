// LateWatch: which devices are late. It compares what a device's links and processor did while it had work with what
// they do at the believed rates. No effects beyond its own state.
//
// A device has three resources: downlink, processor, uplink. While it has work, at least one of them is busy. So the
// time that went by, less the latency of messages and waiting for the server's interface, is at most the sum of what
// the three have done, in seconds at the believed rates. The quotient of the two says by what factor a device is late.
// Forecasts of when something will be done are not used: queues and priorities delay answers without any device being
// late. So no device is late in a fleet that does as it declares.
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
  double factor = 0;  ///< it is slower than believed by this factor at least
  double likely = 0;  ///< the same if its busiest resource had work all the time, and its last panel is not done yet
};

class LateWatch {
 public:
  /// Factor by which a device must be slower than believed, and slower than the median device, to be late.
  static constexpr double kLate = 3;
  /// If more than this share of the devices that have worked is late, the believed rates are wrong, and none is late.
  static constexpr double kMost = 1.0 / 3;

  /// A step begins. `there`: all devices, with what they still have to do of the last one. `every`: time between looks.
  void begin(Seconds now, Seconds every, const fleet::ServerProfile& server,
             std::span<const timing::DeviceState> there);
  /// A device has come. What it still has to do of earlier work is learned at the next look.
  void open(std::int32_t device, Seconds now);
  /// A tasklet was sent. `profile`: its device at the believed rates. Returns the seconds of processor that it should
  /// take; 0 without `wants_answer`.
  double sent(const fleet::DeviceProfile& profile, const plan::PanelRun& run, bool wants_answer, Seconds now);
  /// A tasklet was answered. `computes`: what sent() returned; 0 where the answer is not wanted any more, so that the
  /// device may still compute it.
  void answered(std::int32_t device, double computes, Seconds now);

  /// Takes the measured times of an answer. Returns whether the device took kLate times as long as believed, or longer.
  bool measured(const fleet::DeviceProfile& profile, const timing::Measured& measured);

  [[nodiscard]] Seconds next_look() const { return next_; }
  /// The largest factor of any device since begin(): 1 at most where all do as believed.
  [[nodiscard]] double worst() const { return worst_; }
  /// The late devices, the latest first. `there`: all devices, with what they still have to do at the believed rates.
  [[nodiscard]] std::vector<LateDevice> look(Seconds now, std::span<const timing::DeviceState> there);

 private:
  enum : std::size_t { kDown, kCompute, kUp, kResources };
  using Times = std::array<double, kResources>;  // seconds of the downlink, the processor, the uplink
  // What is known of a device. A window is the time over which its work is compared with its rates.
  struct Device {
    bool open = false, unseen = false;  // it is there; what it had to do when it came is not known yet
    std::int64_t in_hand = 0;           // tasklets that it has not answered
    bool answers = false;               // it answered something in the window
    double messages = 0;                // seconds in the window in which all its work was on the way to or from it
    std::int64_t slow = 0;              // answers in a row that took too long
    double slower = 0;                  // the least factor of these
    double since = 0;                   // when the window began
    double idle = 0, idle_from = 0;     // seconds in the window without tasklets; since when it has none
    double idle_before = 0;             // `idle` at the last look
    double latency = 0;
    double factor = 0;                  // at the last look at which it had worked
    bool loads = false;                 // its downlink had something to carry all the time since the last look
    double looked = 0;                  // when the last look was
    double computes = 0;                // seconds of processor for all that it has not answered
    double to_come = 0;                 // the part of `computes` whose operands were not there when the window began
    double backlog = 0;                 // seconds of processor, at most, for what is there, if it does as believed
    double at_processor = 0;            // `backlog` when the window began
    double port = 0;                    // port_ when the window began
    Times before{}, sent{}, largest{};  // to do when the window began; given since then; the largest panel
    Times seen{}, since_look{};         // to do at the last look; given since then
  };
  Device& at(std::int32_t device);
  static Times still(const timing::DeviceState& state) {
    return {state.down_busy.value(), state.compute_busy.value(), state.up_busy.value()};
  }
  void begin_window(Device& of, const Times& to_do, Seconds now) const;
  // Counts what a device did since the last look.
  void count(Device& of, const timing::DeviceState& state, Seconds now);

  std::vector<Device> devices_;
  fleet::ServerProfile server_;
  double port_ = 0;  // seconds for which the server's interface was busy since begin()
  Seconds began_, every_, next_;
  double worst_ = 0;
};

}  // namespace cleave::sched::stages
