// Outstanding: everything that was asked for and not answered, and what it means for devices and the interface.
#pragma once

#include <algorithm>

#include "by_device.hpp"
#include "cleave/fleet/profile.hpp"
#include "flights.hpp"

namespace cleave::sched {

class Outstanding {
 public:
  void clear() {
    flights_.clear();
    in_hand_.clear();
    out_ = in_ = Bytes(0);
  }

  [[nodiscard]] const Flights& flights() const { return flights_; }

  /// Puts a piece on its device's account; returns the time until the device has done it and what it had in hand.
  Seconds take_in_hand(const plan::TaskletPlan& piece) { return in_hand_[piece.device] += piece.time; }
  /// `flight` is on its way.
  void add(const InFlight& flight) {
    out_ += flight.tasklet.piece.bytes_down;
    in_ += flight.tasklet.piece.bytes_up;
    flights_.add(flight);
  }
  /// It is answered, or its answer is not wanted any more. `in_hand`: its device has it on its account.
  void remove(const Tasklet& tasklet, bool in_hand) {
    if (in_hand) {
      Seconds& account = in_hand_[tasklet.piece.device];
      account = std::max(Seconds(0), account - tasklet.piece.time);
    }
    out_ -= tasklet.piece.bytes_down;
    in_ -= tasklet.piece.bytes_up;
    flights_.remove(tasklet.id);
  }

  /// Time that the server's interface takes for all of it.
  [[nodiscard]] Seconds interface_time(const fleet::ServerProfile& server) const {
    return std::max(out_ / server.nic_out, in_ / server.nic_in);
  }

 private:
  Flights flights_;
  ByDevice<Seconds> in_hand_;  // predicted time of what a device has to do, but for deferrable work
  Bytes out_, in_;
};

}  // namespace cleave::sched
