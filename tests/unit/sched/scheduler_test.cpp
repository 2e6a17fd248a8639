// The scheduler against fleets that answer out of order, leave, come back, lose messages and lie: each block once.
#include <optional>
#include <utility>
#include <vector>

#include "cleave/base/error.hpp"
#include "graphs.hpp"
#include "share.hpp"
#include "urgency.hpp"

namespace cleave::sched {
namespace {

/// How likely, at each event, something other than an answer happens.
struct Mischief {
  double leave = 0, join = 0, lose = 0, lie = 0;
};

/// Has no model of time: any tasklet or kernel in hand may be the next to be done.
class WildFleet final : public Fleet {
 public:
  WildFleet(std::vector<fleet::DeviceProfile> devices, Mischief mischief, std::uint64_t seed)
      : mischief_(mischief), random_(seed, Purpose::jitter), usage_(devices.size()) {
    for (fleet::DeviceProfile& profile : devices) {
      present_.insert(profile.id);
      profiles_.push_back(std::move(profile));
    }
  }

  [[nodiscard]] Seconds now() const override { return Seconds(1e-3 * static_cast<double>(events_)); }
  [[nodiscard]] std::uint64_t roster() const override { return roster_; }
  [[nodiscard]] std::span<const Usage> usage() const override { return usage_; }
  [[nodiscard]] std::vector<plan::DeviceState> devices() const override {
    std::vector<plan::DeviceState> states;
    for (const fleet::DeviceProfile& profile : profiles_) {
      if (present_.contains(profile.id)) states.push_back({profile, {}, {}, {}});
    }
    return states;
  }
  [[nodiscard]] std::vector<plan::DeviceState> devices_ahead_of(const Priority& /*priority*/) const override {
    return devices();
  }
  [[nodiscard]] std::vector<fleet::DeviceProfile> all_devices() const override { return profiles_; }
  void begin_step(const model::StepGraph&) override {}
  void submit(const Tasklet& tasklet) override {
    const DeviceId device = tasklet.piece.device;
    EXPECT_TRUE(device == kServerDevice || present_.contains(device)) << "device " << device.value << " is gone";
    EXPECT_FALSE(liars_.contains(device)) << "device " << device.value << " lied before";
    if (tasklet.stays_on_device()) {
      EXPECT_TRUE(brought_.insert({tasklet.id, device}).second);
      return;
    }
    if (tasklet.columns.valid()) {
      EXPECT_TRUE(brought_.contains({tasklet.columns, device})) << "columns are used that are not there";
    }
    in_hand_.push_back(tasklet);
  }
  void start(const model::Operation& kernel) override { kernels_.push_back(kernel.id); }
  void retire(OpId op) override { EXPECT_TRUE(retired_.insert(op).second); }
  void forget(TaskletId id) override {
    std::erase_if(in_hand_, [&](const Tasklet& tasklet) { return tasklet.id == id; });
  }
  void release(TaskletId columns, DeviceId device) override {
    EXPECT_TRUE(brought_.contains({columns, device}));
    brought_.erase({columns, device});
  }

  Event next_event(Seconds) override {
    ++events_;
    if (again_) return *std::exchange(again_, std::nullopt);
    if (chance(mischief_.leave) && !present_.empty()) return leave();
    if (chance(mischief_.join) && present_.size() < profiles_.size()) return join();
    if (!kernels_.empty() && (in_hand_.empty() || chance(0.3))) {
      const OpId op = kernels_.front();  // kernels keep their order
      kernels_.pop_front();
      return {.kind = EventKind::kernel_done, .at = now(), .tasklet = {}, .device = kServerDevice, .op = op};
    }
    if (in_hand_.empty()) return {.kind = EventKind::timeout, .at = now(), .tasklet = {}, .device = {}, .op = {}};
    const auto pick = static_cast<std::size_t>(draw() * static_cast<double>(in_hand_.size()));
    const Tasklet tasklet = in_hand_[pick];
    in_hand_.erase(in_hand_.begin() + static_cast<std::ptrdiff_t>(pick));
    Event event{
        .kind = EventKind::done, .at = now(), .tasklet = tasklet.id, .device = tasklet.piece.device, .op = tasklet.op};
    if (tasklet.piece.device == kServerDevice) return event;
    if (chance(mischief_.lose)) event.kind = EventKind::lost;
    if (event.kind == EventKind::done && chance(mischief_.lie)) {
      event.kind = EventKind::rejected;
      liars_.insert(event.device);
    }
    return event;
  }

  [[nodiscard]] std::size_t retired() const { return retired_.size(); }
  [[nodiscard]] const std::set<DeviceId>& liars() const { return liars_; }

 private:
  double draw() { return random_.uniform(draws_++); }
  bool chance(double probability) { return probability > 0 && draw() < probability; }

  Event leave() {
    auto device = present_.begin();
    std::advance(device, static_cast<std::ptrdiff_t>(draw() * static_cast<double>(present_.size())));
    const DeviceId id = *device;
    present_.erase(device);
    ++roster_;
    std::erase_if(in_hand_, [&](const Tasklet& tasklet) { return tasklet.piece.device == id; });
    const Event event{.kind = EventKind::left, .at = now(), .tasklet = {}, .device = id, .op = {}};
    if (chance(0.5)) again_ = event;  // a death may be noticed in two ways
    return event;
  }
  Event join() {
    for (const fleet::DeviceProfile& profile : profiles_) {
      if (!present_.insert(profile.id).second) continue;
      ++roster_;
      return {.kind = EventKind::joined, .at = now(), .tasklet = {}, .device = profile.id, .op = {}};
    }
    return {};
  }

  Mischief mischief_;
  Random random_;
  std::uint64_t draws_ = 0;
  std::vector<fleet::DeviceProfile> profiles_;
  std::set<DeviceId> present_, liars_;
  std::set<std::pair<TaskletId, DeviceId>> brought_;
  std::vector<Tasklet> in_hand_;
  std::deque<OpId> kernels_;
  std::optional<Event> again_;
  std::set<OpId> retired_;
  std::int64_t events_ = 0;
  std::uint64_t roster_ = 1;
  std::vector<Usage> usage_;
};

class AnyFleet : public testing::TestWithParam<std::uint64_t> {};

TEST_P(AnyFleet, DoesEachBlockOnceInAnyOrder) {
  const std::uint64_t seed = GetParam();
  const model::StepGraph graph = random_graph(40, seed);
  WildFleet wild(mixed_devices(1 + static_cast<std::int64_t>(seed % 12), seed), {}, seed);
  Book book(graph);
  WatchedFleet fleet(wild, book);
  const StepReport report = Scheduler(fleet, options_of()).run(graph);
  book.expect_complete();
  EXPECT_EQ(report.operations.size(), graph.operations.size());
  EXPECT_EQ(wild.retired(), graph.operations.size());
  EXPECT_EQ(report.lost + report.redone + report.rejected, 0);
}

TEST_P(AnyFleet, DoesEachBlockOnceUnderMischief) {
  const std::uint64_t seed = GetParam();
  const model::StepGraph graph = random_graph(40, seed);
  WildFleet wild(mixed_devices(2 + static_cast<std::int64_t>(seed % 9), seed),
                 {.leave = 0.02, .join = 0.03, .lose = 0.05, .lie = 0.01}, seed);
  Book book(graph);
  WatchedFleet fleet(wild, book);
  Scheduler scheduler(fleet, options_of());
  const StepReport report = scheduler.run(graph);
  book.expect_complete();
  EXPECT_EQ(report.operations.size(), graph.operations.size());
  EXPECT_EQ(report.rejected, std::ssize(wild.liars()));
  EXPECT_EQ(scheduler.distrusted(), std::vector<DeviceId>(wild.liars().begin(), wild.liars().end()));
}

TEST_P(AnyFleet, DoesEachBlockOnceInModelledTime) {
  const std::uint64_t seed = GetParam();
  const model::StepGraph graph = random_graph(40, seed);
  const fleet::ChurnTrace churn = fleet::draw_churn(
      {.mean_session = Seconds(0.5), .mean_absence = Seconds(0.1), .slow_fraction = 0.2, .seed = seed}, 8, Seconds(20));
  SimulatedFleet simulated(mixed_devices(8, seed), wide_server(), DType::f32, churn, seed);
  Book book(graph);
  WatchedFleet fleet(simulated, book);
  (void)Scheduler(fleet, options_of()).run(graph);
  book.expect_complete();
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnyFleet, testing::Range<std::uint64_t>(1, 13));

TEST(Churn, ALeavingDeviceLosesOnlyWhatItHolds) {
  const model::StepGraph graph = graph_of({gemm(0, {400, 300, 500}), gemm(1, {300, 300, 400}, {0})});
  const std::vector<fleet::DeviceProfile> devices{device(0, 1e9, 1e6, 1e6), device(1, 1e9, 1e6, 1e6),
                                                  device(2, 1e9, 1e6, 1e6)};
  SimulatedFleet simulated(devices, wide_server(), DType::f32,
                           {{Seconds(0.1), DeviceId(1), fleet::ChurnKind::leave, 1}});
  Book book(graph);
  WatchedFleet fleet(simulated, book);
  const StepReport report = Scheduler(fleet, options_of()).run(graph);
  book.expect_complete();
  EXPECT_GE(report.lost, 1);
  EXPECT_GE(report.redone, 1);
  EXPECT_GT(report.recovery.value(), 0);
  EXPECT_EQ(report.devices, 2);
}

TEST(Churn, WithNoDeviceLeftTheServerComputes) {
  const model::StepGraph graph = graph_of({gemm(0, {400, 300, 500}), attention(1, {2, 32, 4, 2, 8}, {0})});
  SimulatedFleet simulated({device(0, 1e9, 1e6, 1e6)}, wide_server(), DType::f32,
                           {{Seconds(0.05), DeviceId(0), fleet::ChurnKind::leave, 1}});
  Book book(graph);
  WatchedFleet fleet(simulated, book);
  const StepReport report = Scheduler(fleet, options_of()).run(graph);
  book.expect_complete();
  EXPECT_EQ(report.devices, 0);
}

TEST(Churn, AReturningDeviceIsUsedAgain) {
  const model::StepGraph graph = graph_of({gemm(0, {200, 200, 200}), gemm(1, {200, 200, 200}, {0})});
  SimulatedFleet simulated({device(0, 1e8, 1e5, 1e5)}, wide_server(), DType::f32,
                           {{Seconds(0.001), DeviceId(0), fleet::ChurnKind::leave, 1},
                            {Seconds(0.002), DeviceId(0), fleet::ChurnKind::join, 1}});
  Book book(graph);
  WatchedFleet fleet(simulated, book);
  Scheduler scheduler(fleet, options_of());
  (void)scheduler.run(graph);
  book.expect_complete();
  simulated.return_device(DeviceId(0));
  Book second(graph);
  WatchedFleet again(simulated, second);
  const StepReport report = Scheduler(again, options_of()).run(graph);
  second.expect_complete();
  EXPECT_EQ(report.devices, 1);
}

TEST(Interruption, ASteppedAsideStepThrows) {
  const model::StepGraph graph = random_graph(10, 1);
  SimulatedFleet fleet(mixed_devices(3, 1), wide_server(), DType::f32);
  EXPECT_THROW((void)Scheduler(fleet, options_of()).run(graph, [] { return false; }), Interrupted);
}

TEST(Impossible, ABlockThatFitsNowhereIsTheInputsFault) {
  const model::StepGraph graph = graph_of({gemm(0, {10, 10, 700})});
  SimulatedFleet fleet({device(0, 1e9, 1e6, 1e6, 0, 64)}, wide_server(), DType::f32);
  EXPECT_THROW((void)Scheduler(fleet, options_of()).run(graph), InputError);
}

// Links are the limit: two products, each on half of the fleet, move fewer bytes than one after the other on all of it.
// Whoever is waited for is as urgent as who waits for it.
TEST(Urgency, IsThatOfTheMostUrgentThatWaits) {
  using enum model::Phase;
  const model::StepGraph graph =
      graph_of({gemm(0, {1, 1, 1}, {}, weight_gradient), gemm(1, {1, 1, 1}, {0}, update),
                gemm(2, {1, 1, 1}, {0}, weight_gradient), gemm(3, {1, 1, 1}, {2}, input_gradient),
                gemm(4, {1, 1, 1}, {3}, weight_gradient), gemm(5, {1, 1, 1}, {4}, update)});
  EXPECT_EQ(urgencies(graph), (std::vector<int>{0, 2, 0, 0, 1, 2}));
}

// Two products, one four times as large: each has as much of the fleet as lets both end at about the same time.
TEST(ReadySet, SharesOfTheFleetFollowWhatOperationsNeed) {
  std::vector<plan::DeviceState> devices;
  for (const fleet::DeviceProfile& profile : edge_devices(64, {0, 0})) devices.push_back({profile, {}, {}, {}});
  std::vector<plan::Work> works(2);
  works[0].gemm = {4096, 4096, 16384};
  works[1].gemm = {4096, 4096, 4096};
  const plan::PlanOptions options = options_of().plan;
  const plan::OperationPlan first = plan::plan_operation(works[0], devices, options),
                            second = plan::plan_operation(works[1], devices, options);
  const std::vector<plan::OperationPlan> shared =
      share_fleet(works, std::vector<const plan::OperationPlan*>{&first, &second}, devices, options);
  ASSERT_EQ(shared.size(), 2U);
  EXPECT_LT(shared[0].time.value(), 1.4 * shared[1].time.value());
  EXPECT_LT(shared[1].time.value(), 1.4 * shared[0].time.value());
}

TEST(ReadySet, OperationsReadyAtOnceShareTheFleet) {
  const model::StepGraph both = graph_of({gemm(0, {2000, 2000, 700}), gemm(1, {2000, 2000, 700})});
  const model::StepGraph chained = graph_of({gemm(0, {2000, 2000, 700}), gemm(1, {2000, 2000, 700}, {0})});
  std::vector<fleet::DeviceProfile> devices;
  for (std::int64_t i = 0; i < 16; ++i) devices.push_back(device(i, 1e13, 1e6, 1e7));
  SimulatedFleet together(devices, wide_server(), DType::f32), apart(devices, wide_server(), DType::f32);
  Book book(both);
  WatchedFleet watched(together, book);
  const StepReport shared = Scheduler(watched, options_of()).run(both);
  book.expect_complete();
  const StepReport serial = Scheduler(apart, options_of()).run(chained);
  EXPECT_LT(shared.bytes_down.value(), 0.9 * static_cast<double>(serial.bytes_down.value()));
  EXPECT_LT(shared.time.value(), 0.9 * serial.time.value());
}

}  // namespace
}  // namespace cleave::sched
