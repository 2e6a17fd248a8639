// Steps in stages on fleets that answer out of order, or only after a long silence.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "cleave/sched/forwarding_fleet.hpp"
#include "cleave/sched/simulated_fleet.hpp"
#include "quiet_observer.hpp"
#include "stage_case.hpp"

namespace cleave::sched {
namespace {

// Holds back the first chunk's answer of some visits until the second one's has come, as a device that may say anything
// at any time could. A chunk must not be passed on before its own result is there.
class Overtaking : public ForwardingFleet<> {
 public:
  using ForwardingFleet::ForwardingFleet;

  void submit(const Tasklet& tasklet) override {
    const Chunk chunk{tasklet.errand, tasklet.stage, tasklet.item.sequence, tasklet.item.row};
    asked_[tasklet.id.value] = chunk;
    if (tasklet.errand == Errand::forward && tasklet.stage > 0) {
      Chunk below = chunk;
      --std::get<1>(below);
      EXPECT_TRUE(answered_.contains(below)) << "stage " << tasklet.stage << ", row " << tasklet.item.row;
    }
    ForwardingFleet::submit(tasklet);
  }

  Event next_event(Seconds deadline) override {
    if (release_) return take_held();
    const Event event = ForwardingFleet::next_event(deadline);
    if (event.kind == EventKind::timeout && held_) return take_held();
    if (event.kind != EventKind::done) return event;
    const auto [errand, stage, sequence, row] = asked_[event.tasklet.value];
    if (errand == Errand::forward && row == 0 && !held_) {
      held_ = event;
      return next_event(deadline);
    }
    if (held_) {
      const auto [its_errand, its_stage, its_sequence, its_row] = asked_[held_->tasklet.value];
      release_ = errand == its_errand && stage == its_stage && sequence == its_sequence;
      if (release_) ++overtaken;
    }
    return tell(event);
  }

  std::int64_t overtaken = 0;

 private:
  using Chunk = std::tuple<Errand, std::int32_t, std::int64_t, std::int64_t>;

  Event take_held() {
    const Event event = *held_;
    held_.reset();
    release_ = false;
    return tell(event);
  }
  Event tell(const Event& event) {
    answered_.insert(asked_[event.tasklet.value]);
    return event;
  }

  std::unordered_map<std::int64_t, Chunk> asked_;
  std::set<Chunk> answered_;
  std::optional<Event> held_;
  bool release_ = false;
};

TEST(StageOrder, AChunkIsPassedOnWhenItIsThere) {
  const model::StepGraph graph = graph_of("gpt2", 8);
  std::int64_t overtaken = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    SimulatedFleet behind(devices_of(20, seed), kWide, DType::f16);
    Overtaking fleet(behind);
    StageSchedulerOptions options{{kWide, 0}, DType::f16};
    options.stages.chunk = plan::kChunkTokens;
    options.watch = false;  // it would ask for a timeout at every look, and so for what is held back
    StageScheduler scheduler(fleet, graph, options);
    scheduler.run();
    expect_all_done_once(scheduler, graph);
    overtaken += fleet.overtaken;
  }
  EXPECT_GT(overtaken, 12);
}

// A chunk's answer comes at the very moment at which the device leaves that has the sequence at the next stage, and
// after that is known: it goes to whoever takes the sequence over, and to nobody before.
TEST(StageOrder, AChunkComesAsTheNextDeviceLeaves) {
  struct Chunks final : QuietObserver {
    using Chunk = std::tuple<Errand, std::int32_t, std::int64_t, std::int64_t>;  // stage, sequence, row
    std::map<TaskletId, Chunk> asked;
    std::map<Chunk, DeviceId> ran;
    std::map<Chunk, Seconds> answered;
    void submitted(const Tasklet& tasklet) override {
      const Chunk chunk{tasklet.errand, tasklet.stage, tasklet.item.sequence, tasklet.item.row};
      asked[tasklet.id] = chunk;
      ran[chunk] = tasklet.piece.device;
    }
    void settled(TaskletId tasklet, Seconds at, bool /*lost*/) override { answered[asked[tasklet]] = at; }
  };
  const model::StepGraph graph = graph_of("gpt2", 4);
  StageSchedulerOptions options{{kWide, 0}, DType::f16};
  options.stages.chunk = plan::kChunkTokens;
  std::int64_t moments = 0;
  for (const std::uint64_t seed : {1, 2}) {
    const auto devices = devices_of(16, seed);
    SimulatedFleet calm(devices, kWide, DType::f16);
    Chunks seen;
    calm.set_observer(&seen);
    StageScheduler(calm, graph, options).run();
    for (const auto& [chunk, at] : seen.answered) {
      const auto [errand, stage, sequence, row] = chunk;
      const bool back = errand == Errand::backward;
      // One of each visit, the second one that comes: the first has told the next stage of the sequence.
      if ((errand != Errand::forward && !back) || row != plan::kChunkTokens || (stage + sequence) % 2 != 0) continue;
      const auto next = seen.ran.find({errand, stage + (back ? -1 : 1), sequence, row});
      if (next == seen.ran.end()) continue;
      SCOPED_TRACE(testing::Message() << "fleet " << seed << ", stage " << stage << (back ? ", back" : ", forward")
                                      << ", sequence " << sequence);
      SimulatedFleet fleet(devices, kWide, DType::f16, {{at, next->second, fleet::ChurnKind::leave, 1.0}});
      StageScheduler scheduler(fleet, graph, options);
      scheduler.run();
      expect_all_done_once(scheduler, graph);
      ++moments;
    }
  }
  EXPECT_GT(moments, 10);
}

// Sums may be recomputed as long as one of them is missing, from the weights that they were made from.
class UpdatesLast : public ForwardingFleet<> {
 public:
  using ForwardingFleet::ForwardingFleet;

  void start(const model::Operation& kernel) override {
    updates += kernel.kind == model::OpKind::adamw ? 1 : 0;
    ForwardingFleet::start(kernel);
  }
  void submit(const Tasklet& tasklet) override {
    EXPECT_EQ(updates, 0) << "work for gradients after the first update";
    ForwardingFleet::submit(tasklet);
  }
  Event next_event(Seconds deadline) override {
    const Event event = ForwardingFleet::next_event(deadline);
    EXPECT_FALSE(event.kind == EventKind::done && updates > 0) << "a gradient after the first update";
    return event;
  }

  std::int64_t updates = 0;
};

TEST(StageOrder, NoParameterChangesBeforeAllGradientsAreThere) {
  for (const bool clip : {false, true}) {
    const model::ModelConfig config = model::small_model("gpt2", 3, 128, 640, 384);
    const model::StepGraph graph = model::build_step(
        config,
        {.kind = model::StepKind::train, .batch = 8, .clip = clip, .freeze = {}, .loss_rows = 0, .row_groups = 1});
    SimulatedFleet behind(devices_of(20, 1), kWide, DType::f16);
    UpdatesLast fleet(behind);
    StageScheduler scheduler(fleet, graph, {{kWide, 0}, DType::f16});
    scheduler.run();
    expect_all_done_once(scheduler, graph);
    EXPECT_GT(fleet.updates, 10);
  }
}

// An interface so slow that nothing comes for minutes: nobody is silent, in the step and in its rehearsals.
TEST(StageOrder, ASlowInterfaceIsNoSilence) {
  const model::StepGraph graph = graph_of("gpt2", 2);
  for (const double rate : {2e4, 2e3}) {
    fleet::ServerProfile server = kWide;
    server.nic_out = server.nic_in = BytesPerSecond(rate);
    const auto devices = devices_of(8, 3, 1e8);
    const plan::StagePlan plan =
        plan::plan_stages(plan::stage_work_of(graph, DType::f16), devices, {kWide, 0});  // for a quick one
    SimulatedFleet fleet(devices, server, DType::f16);
    StageScheduler scheduler(fleet, graph, plan, {{server, 0}, DType::f16});
    const StepReport report = scheduler.run();
    EXPECT_GT(report.time.value(), 300);
    EXPECT_EQ(report.lost + report.late + report.server_sums, 0) << rate;
    EXPECT_TRUE(report.losses.empty()) << rate;
    expect_all_done_once(scheduler, graph);
    SimulatedFleet planned(devices, server, DType::f16);
    StageScheduler itself(planned, graph, {{server, 0}, DType::f16});
    EXPECT_EQ(itself.run().lost, 0) << rate;
  }
}

// A hung device is found out nevertheless.
TEST(StageOrder, SilenceEnds) {
  const model::StepGraph graph = graph_of("gpt2", 8);
  const auto devices = devices_of(12, 1);
  StageSchedulerOptions options{{kWide, 0}, DType::f16};
  options.watch = false;
  SimulatedFleet calm(devices, kWide, DType::f16);
  const Seconds step = StageScheduler(calm, graph, options).run().time;
  SimulatedFleet fleet(devices, kWide, DType::f16, {{step * 0.3, DeviceId(2), fleet::ChurnKind::hang, 1.0}});
  StageScheduler scheduler(fleet, graph, options);
  const StepReport report = scheduler.run();
  EXPECT_GT(report.lost, 0);
  EXPECT_LT(report.time.value(), 60 + 12 * step.value());
  expect_all_done_once(scheduler, graph);
}

}  // namespace
}  // namespace cleave::sched
