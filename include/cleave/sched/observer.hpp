// Observer: is told what a fleet's resources are used for, and when.
//
// A fleet calls it as things happen; app's timeline implements it. A fleet behaves the same with and without an
// observer, and pays for it only when there is one.
#pragma once

#include <cstdint>

#include "cleave/base/ids.hpp"
#include "cleave/base/units.hpp"
#include "cleave/model/graph.hpp"
#include "cleave/sched/fleet.hpp"

namespace cleave::sched {

using timing::Resource;

/// One use of one resource, in the fleet's time. It is reported when it begins, so `end` is what the model predicts. If
/// the device leaves before, settled() says so.
struct Span {
  DeviceId device;  ///< kServerDevice for kernels and for blocks that the server computes
  Resource resource = Resource::down;
  Seconds start, end;
  OpId op;            ///< of the graph of the last begin()
  TaskletId tasklet;  ///< invalid for kernels
  Bytes bytes;        ///< carried; zero for computation
  bool redone = false;
  Errand errand = Errand::none;
  std::int32_t stage = 0;
};

/// The use of a resource by a tasklet.
[[nodiscard]] inline Span span_of(const Tasklet& tasklet, Resource resource, Seconds start, Seconds end, Bytes bytes) {
  return {.device = tasklet.piece.device,
          .resource = resource,
          .start = start,
          .end = end,
          .op = tasklet.op,
          .tasklet = tasklet.id,
          .bytes = bytes,
          .redone = tasklet.redone,
          .errand = tasklet.errand,
          .stage = tasklet.stage};
}

enum class DeviceChange : std::uint8_t { left, joined, slowed, hung, faulty };

/// See the file comment. A fleet calls it on the thread that calls the fleet.
class Observer {
 public:
  virtual ~Observer() = default;
  /// A step begins: operations of the calls that follow are those of `graph`, which outlives them.
  virtual void begin(const model::StepGraph& graph, Seconds at) = 0;
  /// True: span() is called for every resource. False: for the server's processor only; a large fleet is then simulated
  /// several times faster. A fleet asks once.
  [[nodiscard]] virtual bool wants_spans() const { return true; }
  /// A use of a resource begins.
  virtual void span(const Span& span) = 0;
  /// A tasklet was given to its device, or to the server.
  virtual void submitted(const Tasklet& /*tasklet*/) {}
  /// A tasklet has ended on its device: completed, or (`lost`) lost with whatever part of it was done.
  virtual void settled(TaskletId tasklet, Seconds at, bool lost) = 0;
  /// A device has changed. `factor`, for `slowed`: every rate is the declared one times this from now on.
  virtual void changed(DeviceId device, DeviceChange change, Seconds at, double factor) = 0;
};

}  // namespace cleave::sched
