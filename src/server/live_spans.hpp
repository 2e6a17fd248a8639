// LiveSpans: tells an observer what the resources of a fleet with clock `off` were taken for.
//
// The server knows when it sent a task and when the answer came; the answer says how long the task stayed on its rank
// and was computed there. So no clocks are compared. What is left of the time between sending and answer is the way
// there and back, divided by the bytes of each. A resource that is told to be taken twice at once is told once.
#pragma once

#include <array>
#include <unordered_map>
#include <vector>

#include "cleave/base/kept_memory.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/sched/observer.hpp"

namespace cleave::server {

class LiveSpans {
 public:
  /// `observer` may be null: then nothing costs anything.
  LiveSpans(sched::Observer* observer, std::size_t devices);

  void begin(const model::StepGraph& graph, Seconds at);
  /// A task left: gathered between `begun` and `sent`.
  void sent(const sched::Tasklet& tasklet, Seconds begun, Seconds sent);
  /// Its answer arrived at `at`.
  void answered(const sched::Tasklet& tasklet, const comm::Header& result, Seconds at);
  /// The block was checked and put in its place between the two.
  void placed(const sched::Tasklet& tasklet, Seconds begun, Seconds end);
  /// The block is not wanted any more, or will not come.
  void lost(TaskletId tasklet, Seconds at);
  void lost_with(DeviceId device, Seconds at);
  void changed(DeviceId device, sched::DeviceChange change, Seconds at, double factor = 1.0);
  void computed_here(const sched::Tasklet& tasklet, Seconds start, Seconds end);
  void kernel(OpId op, Seconds start, Seconds end);

 private:
  struct Open {
    sched::Tasklet tasklet;
    Seconds sent;
  };
  void tell(const sched::Tasklet& tasklet, sched::Resource resource, Seconds start, Seconds end, Bytes bytes);

  sched::Observer* observer_;
  NodePool nodes_;
  std::pmr::unordered_map<TaskletId, Open> open_{&nodes_};
  std::vector<std::array<Seconds, 3>> free_;  // until when downlink, processor and uplink were told to be taken
  std::array<Seconds, 3> server_free_{};      // and the server's resources
};

}  // namespace cleave::server
