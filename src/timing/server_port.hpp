// ServerPort: one direction of the server's interface, a serial resource that all devices share.
//
// The most urgent waiting message goes first, as on a device's links. Among equally urgent ones the message with the
// longest tail (Tail) goes first, since its device would finish last; among equal tails, the one that came first.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "cleave/base/units.hpp"
#include "cleave/timing/event_queue.hpp"
#include "cleave/timing/stream.hpp"

namespace cleave::timing {

class SimulatedDevice;

class ServerPort {
 public:
  struct Request {
    Priority priority;
    Seconds tail;
    std::int64_t sequence = 0;  ///< in order of request
    Seconds through;            ///< for which it will take the interface
    SimulatedDevice* device = nullptr;
    std::uint32_t epoch = 0;  ///< of the device; void when it has another one
    [[nodiscard]] bool operator<(const Request& o) const {
      if (priority != o.priority) return priority > o.priority;
      return tail != o.tail ? tail < o.tail : sequence > o.sequence;
    }
  };

  /// Whether a message has to wait that would take the interface for `through`: what takes it no time does not.
  [[nodiscard]] bool has_to_wait(Seconds through) const { return taken() && through.value() > 0; }
  void take(Seconds now, Seconds through, std::int64_t sequence) {
    if (through.value() > 0) free_ = event_key(now + through, EventPriority::within_device, sequence);
  }
  void wait(const Request& request) {
    backlog_ += request.through;
    waiting_.push(request);
  }

  /// When it is free again; kNever: it is.
  [[nodiscard]] EventKey next() const { return free_; }
  /// Frees it. Returns the request to be served next, which may be void; its device is null when none waits.
  Request release() {
    free_ = kNever;
    if (waiting_.empty()) return {};
    const Request next = waiting_.top();
    waiting_.pop();
    backlog_ = waiting_.empty() ? Seconds(0) : backlog_ - next.through;
    return next;
  }
  /// When it could serve a message that had to wait for all others. Requires: taken.
  [[nodiscard]] Seconds after_all() const { return free_.at + backlog_; }

 private:
  [[nodiscard]] bool taken() const { return free_ != kNever; }

  EventKey free_ = kNever;
  Seconds backlog_;  // for which all that wait will take it
  std::priority_queue<Request> waiting_;
};

}  // namespace cleave::timing
