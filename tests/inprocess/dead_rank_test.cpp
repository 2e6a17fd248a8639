// A rank that dies while the fleet's trace goes on: its devices come and go in the trace alone, and nobody waits for
// them. And one that only seems to be dead.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "passing_on.hpp"
#include "run.hpp"

namespace cleave::testing_run {
namespace {

/// Ends after so many messages.
class Dying final : public PassingOn {
 public:
  Dying(std::shared_ptr<comm::Transport> inner, std::int64_t messages) : PassingOn(std::move(inner)), left_(messages) {}
  void send(int dest, comm::Frame frame) override {
    if (left_ > 0) PassingOn::send(dest, std::move(frame));
  }
  [[nodiscard]] std::optional<comm::Received> poll() override { return counted(PassingOn::poll()); }
  [[nodiscard]] std::optional<comm::Received> wait(Seconds at_most) override {
    return counted(PassingOn::wait(at_most));
  }
  [[nodiscard]] bool gone(int rank) const override { return left_ <= 0 || PassingOn::gone(rank); }

 private:
  std::optional<comm::Received> counted(std::optional<comm::Received> received) {
    if (received && --left_ <= 0) return std::nullopt;
    return received;
  }

  std::int64_t left_;
};

// Devices come and go every 50 ms for 500 s. A step that waits a second for them to come back waits no longer because
// they do so in the trace.
TEST(DeadRank, IsNotWaitedForWhereItsDevicesComeBackInTheTrace) {
  Setting s = in_stages(small_setting(), alike_devices(3), 1);
  s.steps = 4;
  for (std::int64_t i = 1; i < 10'000; ++i) {
    const auto kind = i % 2 == 1 ? fleet::ChurnKind::leave : fleet::ChurnKind::join;
    s.churn.push_back({Seconds(0.05 * static_cast<double>(i)), DeviceId(i / 2 % 3), kind, 1.0});
  }
  comm::LoopbackHub hub(2);
  const std::unique_ptr<comm::Transport> server = hub.endpoint(0);
  std::thread host([endpoint = std::shared_ptr<comm::Transport>(hub.endpoint(1))] {
    Dying dying(endpoint, 60);
    (void)device::run_device_host(dying);
  });
  server::TrainerOptions options = options_of(s);
  options.fleet.patience = Seconds(0.5);
  server::ParameterStore parameters = initial_parameters(s);
  {
    server::Trainer trainer(parameters, options, server.get());
    std::int64_t lost = 0;
    for (std::int64_t step = 0; step < s.steps; ++step) {
      const server::StepResult result = trainer.step(step, batch_of(s, step));
      EXPECT_LT(result.time.value(), 20) << step;
      lost += result.report.lost;
    }
    EXPECT_GT(lost, 0);
    (void)trainer.say_goodbye(Seconds(1));
  }
  host.join();
  EXPECT_EQ(parameters.hash(), honest_bits(s));
}

/// A server's, whose first wait once it says goodbye ends just before the others' farewells come; they have left then.
class Untimely final : public PassingOn {
 public:
  using PassingOn::PassingOn;
  void say_goodbye() { leaving_ = true; }
  [[nodiscard]] std::optional<comm::Received> wait(Seconds at_most) override {
    if (!std::exchange(leaving_, false)) return PassingOn::wait(at_most);
    while (!gone(1) || !gone(2)) std::this_thread::yield();
    return std::nullopt;
  }

 private:
  bool leaving_ = false;
};

TEST(DeadRank, IsNoRankThatSaidFarewellAndLeftAtOnce) {
  Setting s = small_setting();
  s.steps = 1;
  comm::LoopbackHub hub(3);
  Untimely server(hub.endpoint(0));
  std::vector<std::thread> hosts;
  for (const int rank : {1, 2}) {
    hosts.emplace_back([endpoint = std::shared_ptr<comm::Transport>(hub.endpoint(rank))] {
      (void)device::run_device_host(*endpoint);
      (void)endpoint->close(Seconds(0));
    });
  }
  server::ParameterStore parameters = initial_parameters(s);
  {
    server::Trainer trainer(parameters, options_of(s), &server);
    (void)trainer.step(0, batch_of(s, 0));
    server.say_goodbye();
    EXPECT_TRUE(trainer.say_goodbye(Seconds(10)).empty());
  }
  for (std::thread& host : hosts) host.join();
}

}  // namespace
}  // namespace cleave::testing_run
