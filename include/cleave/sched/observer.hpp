// Observer: who watches what a fleet's resources are taken for, and when.
//
// A fleet calls it as things happen; app's timeline is the one that listens. Watching changes nothing: a fleet behaves
// the same with and without an observer, and pays for it only when there is one.
#pragma once

#include <cstdint>

#include "cleave/base/ids.hpp"
#include "cleave/base/units.hpp"
#include "cleave/model/graph.hpp"
#include "cleave/sched/fleet.hpp"

namespace cleave::sched {

using timing::Resource;

/// One use of one resource, in the fleet's time. Told when it begins, so `end` is what the model says: should the
/// device leave first, settled() tells.
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

/// The span of one resource's work on a tasklet.
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

class Observer {
 public:
  virtual ~Observer() = default;
  /// Operations of what follows belong to `graph`, which outlives them.
  virtual void begin(const model::StepGraph& graph, Seconds at) = 0;
  /// Whether every use of a device's resources is to be told. If not, spans are told of the server's processor only,
  /// and a large fleet is simulated several times faster. A fleet asks once.
  [[nodiscard]] virtual bool wants_spans() const { return true; }
  virtual void span(const Span& span) = 0;
  /// A tasklet was given to its device, or to the server.
  virtual void submitted(const Tasklet& /*tasklet*/) {}
  /// The tasklet is off its device: complete, or lost with whatever part of it was done.
  virtual void settled(TaskletId tasklet, Seconds at, bool lost) = 0;
  /// `factor`: of every rate from now on; only for `slowed`.
  virtual void changed(DeviceId device, DeviceChange change, Seconds at, double factor) = 0;
};

}  // namespace cleave::sched
