// Devices that share nothing are simulated one by one, each as far as it goes alone. That must not show: a fleet that
// is watched in every detail is simulated event by event, and does the same at the same times.
#include "graphs.hpp"
#include "quiet_observer.hpp"

namespace cleave::sched {
namespace {

class Watcher final : public QuietObserver {
 public:
  explicit Watcher(bool spans) : spans_(spans) {}
  [[nodiscard]] bool wants_spans() const override { return spans_; }
  void span(const Span& span) override { of_devices_ += span.device != kServerDevice ? 1 : 0; }
  void submitted(const Tasklet& /*tasklet*/) override { ++submitted_; }
  [[nodiscard]] std::int64_t spans_of_devices() const { return of_devices_; }
  [[nodiscard]] std::int64_t submissions() const { return submitted_; }

 private:
  bool spans_;
  std::int64_t of_devices_ = 0, submitted_ = 0;
};

struct Outcome {
  std::vector<StepReport> steps;
  std::vector<Usage> usage;
};

Outcome run(const model::StepGraph& graph, const std::vector<fleet::DeviceProfile>& devices,
            const fleet::ServerProfile& server, const fleet::ChurnTrace& churn, Observer* observer) {
  SimulatedFleet fleet(devices, server, DType::f16, churn, 5);
  fleet.set_observer(observer);
  Scheduler scheduler(fleet, {.plan = {.server = server}, .wire = DType::f16});
  Outcome outcome;
  for (int step = 0; step < 2; ++step) outcome.steps.push_back(scheduler.run(graph));
  outcome.usage.assign(fleet.usage().begin(), fleet.usage().end());
  return outcome;
}

// Every figure to the last bit: `apart` was simulated device by device, `watched` event by event.
void expect_same(const Outcome& apart, const Outcome& watched) {
  for (std::size_t s = 0; s < apart.steps.size(); ++s) {
    const StepReport &a = apart.steps[s], &b = watched.steps[s];
    EXPECT_EQ(a.time, b.time);
    EXPECT_EQ(a.tasklets, b.tasklets);
    EXPECT_EQ(a.copies, b.copies);
    EXPECT_EQ(a.lost, b.lost);
    EXPECT_EQ(a.energy, b.energy);
    ASSERT_EQ(a.operations.size(), b.operations.size());
    for (std::size_t i = 0; i < a.operations.size(); ++i) {
      EXPECT_EQ(a.operations[i].op, b.operations[i].op);
      EXPECT_EQ(a.operations[i].end, b.operations[i].end);
    }
  }
  for (std::size_t d = 0; d < apart.usage.size(); ++d) {
    const Usage &a = apart.usage[d], &b = watched.usage[d];
    EXPECT_EQ(a.down, b.down);
    EXPECT_EQ(a.compute, b.compute);
    EXPECT_EQ(a.up, b.up);
    EXPECT_EQ(a.bytes_down, b.bytes_down);
    EXPECT_EQ(a.bytes_up, b.bytes_up);
    EXPECT_EQ(a.streams, b.streams);
    EXPECT_EQ(a.memory_peak, b.memory_peak);
  }
}

void compare(const model::StepGraph& graph, const std::vector<fleet::DeviceProfile>& devices,
             const fleet::ChurnTrace& churn) {
  Watcher every(true), few(false);
  const Outcome watched = run(graph, devices, wide_server(), churn, &every);
  const Outcome apart = run(graph, devices, wide_server(), churn, &few);
  EXPECT_GT(every.spans_of_devices(), 0);
  EXPECT_EQ(few.spans_of_devices(), 0);
  EXPECT_EQ(every.submissions(), few.submissions());
  expect_same(apart, watched);
}

TEST(IndependentDevices, RandomGraphsOverMixedDevices) {
  for (const std::uint64_t seed : {1U, 2U, 3U, 4U, 5U, 6U})
    compare(random_graph(60, seed), mixed_devices(13, seed), {});
}

TEST(IndependentDevices, WithoutLatency) {
  for (const std::uint64_t seed : {7U, 8U}) compare(random_graph(60, seed), mixed_devices(13, seed, 0), {});
}

// Devices of one kind do everything at the same times.
TEST(IndependentDevices, EqualDevices) {
  std::vector<fleet::DeviceProfile> equal;
  for (std::int64_t i = 0; i < 12; ++i) equal.push_back(device(i, 1e10, 1e7, 1e7, i % 2 == 0 ? 0.001 : 0, 3'000'000));
  for (const std::uint64_t seed : {1U, 2U, 3U}) compare(random_graph(60, seed), equal, {});
}

TEST(IndependentDevices, UnderChurn) {
  for (const std::uint64_t seed : {1U, 2U, 3U, 4U}) {
    fleet::ChurnTrace churn;
    const Random random(seed, Purpose::test);
    for (std::uint64_t i = 0; i < 40; ++i) {
      static constexpr fleet::ChurnKind kKinds[] = {fleet::ChurnKind::leave, fleet::ChurnKind::join,
                                                    fleet::ChurnKind::slow, fleet::ChurnKind::hang};
      const fleet::ChurnKind kind = kKinds[random.below(3 * i, 4)];
      churn.push_back({Seconds(0.03 * static_cast<double>(i)),
                       DeviceId(static_cast<std::int64_t>(random.below(3 * i + 1, 9))), kind,
                       kind == fleet::ChurnKind::slow ? 0.1 + random.uniform(3 * i + 2) : 1.0});
    }
    compare(random_graph(60, seed), mixed_devices(9, seed), churn);
  }
}

// An interface that is wide but not unlimited is simulated event by event too.
TEST(IndependentDevices, AnInterfaceThatNeverBindsChangesNothing) {
  fleet::ServerProfile wide = wide_server();
  wide.nic_out = wide.nic_in = BytesPerSecond(1e40);
  const model::StepGraph graph = random_graph(60, 3);
  expect_same(run(graph, mixed_devices(11, 3), wide_server(), {}, nullptr),
              run(graph, mixed_devices(11, 3), wide, {}, nullptr));
}

}  // namespace
}  // namespace cleave::sched
