// A device of a step in stages whose answers are lost, one like the other, though it is there all the time: it is left
// out of the step, and everything is done by the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/error.hpp"
#include "cleave/sched/forwarding_fleet.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "cleave/sched/stage_scheduler.hpp"
#include "stage_case.hpp"

namespace cleave::sched {
namespace {

class LosesAnswers final : public ForwardingFleet<> {
 public:
  LosesAnswers(Fleet& behind, DeviceId of) : ForwardingFleet(behind), of_(of) {}
  Event next_event(Seconds deadline) override {
    Event event = ForwardingFleet::next_event(deadline);
    if (event.kind != EventKind::done || event.device != of_) return event;
    event.kind = EventKind::lost;
    ++lost_;
    return event;
  }
  [[nodiscard]] std::int64_t lost() const { return lost_; }

 private:
  DeviceId of_;
  std::int64_t lost_ = 0;
};

// Unless it is the only one that has room.
TEST(StageUnanswered, OneDeviceDoesNotMakeTheStepBeGivenUp) {
  std::int64_t done = 0, no_room = 0;
  for (const std::int64_t count : {3, 4, 6}) {
    for (const double memory : {2e6, 4e6}) {
      for (std::int64_t who = 0; who < count; ++who) {
        const model::StepGraph graph = graph_of("opt", 8, 4);
        SimulatedFleet behind(devices_of(count, 1, memory), kWide, DType::f16);
        LosesAnswers fleet(behind, DeviceId(who));
        StageScheduler scheduler(fleet, graph, {{kWide, 0}, DType::f16});
        try {
          scheduler.run();
          expect_all_done_once(scheduler, graph);
          ++done;
        } catch (const InputError& error) {
          EXPECT_THAT(error.what(), ::testing::HasSubstr("no device that is left can hold"));
          ++no_room;
        }
        EXPECT_LE(fleet.lost(), 6) << count << ' ' << memory << ' ' << who;
      }
    }
  }
  EXPECT_GT(done, 3 * no_room);
}

}  // namespace
}  // namespace cleave::sched
