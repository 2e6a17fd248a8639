// ForwardingFleet: a fleet that stands before another one and passes everything on, for wrappers that change little.
//
// A wrapper overrides what it watches or does beside, and calls the fleet behind it. A new method of Fleet is passed on
// here, once.
#pragma once

#include <span>
#include <vector>

#include "cleave/sched/fleet.hpp"

namespace cleave::sched {

/// See the file comment. `Interface`: Fleet, or an interface derived from it.
template <class Interface = Fleet>
class ForwardingFleet : public Interface {
 public:
  /// `behind` must outlive every call; it need not be made yet, so it may be a member of the wrapper.
  explicit ForwardingFleet(Fleet& behind) : behind_(behind) {}

  [[nodiscard]] Seconds now() const override { return behind_.now(); }
  [[nodiscard]] std::vector<plan::DeviceState> devices() const override { return behind_.devices(); }
  [[nodiscard]] std::vector<plan::DeviceState> devices_ahead_of(const Priority& priority) const override {
    return behind_.devices_ahead_of(priority);
  }
  [[nodiscard]] std::vector<fleet::DeviceProfile> all_devices() const override { return behind_.all_devices(); }
  [[nodiscard]] std::uint64_t roster() const override { return behind_.roster(); }
  void begin_step(const model::StepGraph& graph) override { behind_.begin_step(graph); }
  void begin_stages(const plan::StagePlan& plan) override { behind_.begin_stages(plan); }
  void begin_tiles(std::int32_t stage, bool back) override { behind_.begin_tiles(stage, back); }
  void end_tiles(std::int32_t stage, bool back) override { behind_.end_tiles(stage, back); }
  void submit(const Tasklet& tasklet) override { behind_.submit(tasklet); }
  void start(const model::Operation& kernel) override { behind_.start(kernel); }
  void finish(OpId op) override { behind_.finish(op); }
  void retire(OpId op) override { behind_.retire(op); }
  void forget(TaskletId tasklet) override { behind_.forget(tasklet); }
  void release(TaskletId columns, DeviceId device) override { behind_.release(columns, device); }
  Event next_event(Seconds deadline) override { return behind_.next_event(deadline); }
  [[nodiscard]] std::span<const Usage> usage() const override { return behind_.usage(); }

 private:
  Fleet& behind_;
};

}  // namespace cleave::sched
