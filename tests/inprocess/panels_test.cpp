// Tasklets that travel in panels: which do, how many panels are under way, and what happens when a device is lost
// between two of them or answers what it was not sent. The bits are those of the server alone.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <mutex>

#include "passing_on.hpp"
#include "run.hpp"

namespace cleave::testing_run {
namespace {

using comm::PartOf;

// 3200 tokens: weight gradients have three K blocks.
Setting small_panels() {
  Setting s = small_setting();
  s.batch = 200;
  s.parts = kSmallParts;
  s.devices = unlike_devices(4);
  s.devices.back() = slower({s.devices.back()}, 1.0 / 3).front();  // so it has many panels of every operation
  s.device_ranks = 2;
  s.verification = {.mode = server::VerifyMode::all, .seed = 8};
  return s;
}

std::uint64_t bits_of_the_server_alone() {
  static const std::uint64_t hash = [] {
    Setting s = small_panels();
    s.devices.clear();
    return train(s).hash;
  }();
  return hash;
}

/// Passes everything on; looks at what is received, and may change what is sent.
class Between final : public PassingOn {
 public:
  using PassingOn::PassingOn;
  void send(int dest, comm::Frame frame) override {
    if (on_send) on_send(dest, frame);
    PassingOn::send(dest, std::move(frame));
  }
  [[nodiscard]] std::optional<comm::Received> poll() override { return seen(PassingOn::poll()); }
  [[nodiscard]] std::optional<comm::Received> wait(Seconds at_most) override { return seen(PassingOn::wait(at_most)); }
  [[nodiscard]] bool gone(int rank) const override { return dead || PassingOn::gone(rank); }

  std::function<void(int, comm::Frame&)> on_send;
  std::function<void(const comm::Header&)> on_receive;
  bool dead = false;

 private:
  std::optional<comm::Received> seen(std::optional<comm::Received> received) {
    if (received && on_receive) {
      if (const auto header = header_of(received->frame)) on_receive(*header);
    }
    if (dead) return std::nullopt;
    return received;
  }

 public:
  static std::optional<comm::Header> header_of(const comm::Frame& frame) {
    if (frame.size() < comm::kHeaderBytes) return std::nullopt;
    const auto header = comm::decode_header(frame.bytes().first(comm::kHeaderBytes), frame.size());
    return header ? std::optional(*header) : std::nullopt;
  }
};

struct Ended {
  std::uint64_t hash = 0;
  std::int64_t lost = 0, rejected = 0;
  std::vector<DeviceId> distrusted;
};

/// A run whose server, and whose device rank 1, send and receive through what `at_server` and `at_rank` make of it.
Ended run(const Setting& s, const std::function<void(Between&)>& at_server,
          const std::function<void(Between&)>& at_rank = {}) {
  comm::LoopbackHub hub(1 + s.device_ranks);
  Between server(hub.endpoint(0));
  if (at_server) at_server(server);
  std::vector<std::thread> hosts;
  for (int rank = 1; rank <= s.device_ranks; ++rank) {
    auto endpoint = std::make_shared<Between>(hub.endpoint(rank));
    if (rank == 1 && at_rank) at_rank(*endpoint);
    hosts.emplace_back([endpoint = std::move(endpoint)]() mutable {
      (void)device::run_device_host(*endpoint);
      endpoint.reset();
    });
  }
  server::ParameterStore parameters = initial_parameters(s);
  Ended ended;
  {
    server::TrainerOptions options = options_of(s);
    options.fleet.patience = Seconds(2);
    server::Trainer trainer(parameters, options, &server);
    for (std::int64_t step = 0; step < s.steps; ++step) {
      const server::StepResult result = trainer.step(step, batch_of(s, step));
      ended.lost += result.report.lost;
      ended.rejected += result.report.rejected;
    }
    ended.distrusted = trainer.distrusted();
    (void)trainer.say_goodbye(Seconds(10));
  }
  for (std::thread& host : hosts) host.join();
  ended.hash = parameters.hash();
  return ended;
}

// Weight gradients in runs of K, of which a device never has more than two that it has not multiplied; other products
// in rows; attention in pairs.
TEST(Panels, OfEveryKindOfWork) {
  for (const server::ClockMode clock : {server::ClockMode::off, server::ClockMode::virtual_time}) {
    for (const DType wire : {DType::f32, DType::f16}) {
      Setting s = small_panels();
      s.clock = clock;
      s.wire = wire;
      std::array<std::int64_t, 4> panels{};
      std::map<TaskletId, std::int64_t> under_way;
      std::int64_t most = 0;
      const Ended ended = run(s, [&](Between& server) {
        server.on_send = [&](int, comm::Frame& frame) {
          const auto header = Between::header_of(frame);
          if (!header || header->kind != comm::Kind::task) return;
          ++panels.at(static_cast<std::size_t>(header->part.of));
          if (header->part.of == PartOf::k_blocks) most = std::max(most, ++under_way[header->tasklet]);
        };
        server.on_receive = [&](const comm::Header& header) {
          if (header.kind == comm::Kind::result && header.part.of == PartOf::k_blocks) --under_way[header.tasklet];
        };
      });
      for (const PartOf of : {PartOf::rows, PartOf::k_blocks, PartOf::pairs})
        EXPECT_GT(panels[static_cast<std::size_t>(of)], 0) << static_cast<int>(of);
      EXPECT_EQ(most, 2);
      EXPECT_EQ(ended.rejected, 0);
      EXPECT_EQ(ended.lost, 0);
      Setting alone = s;
      alone.devices.clear();
      EXPECT_EQ(ended.hash, train(alone).hash) << name_of(wire);
    }
  }
}

// A rank that dies with a panel in its hands, early or late in the run, and is not heard of again.
TEST(Panels, ADeviceIsLostBetweenTwo) {
  for (const server::ClockMode clock : {server::ClockMode::off, server::ClockMode::virtual_time}) {
    for (const PartOf of : {PartOf::rows, PartOf::k_blocks, PartOf::pairs}) {
      for (const int number : {1, 7}) {
        Setting s = small_panels();
        s.clock = clock;
        const Ended ended = run(s, {}, [&, left = number](Between& rank) mutable {
          rank.on_receive = [&rank, of, left](const comm::Header& header) mutable {
            const bool within = header.part.of == of && header.part.end() < header.part_units();
            if (header.kind == comm::Kind::task && within && --left == 0) rank.dead = true;
          };
        });
        EXPECT_EQ(ended.hash, bits_of_the_server_alone()) << static_cast<int>(of) << " after " << number;
        EXPECT_GT(ended.lost, 0) << static_cast<int>(of) << " after " << number;
      }
    }
  }
}

// Devices that leave and come back under the model, while their panels are under way.
TEST(Panels, WhileDevicesComeAndGo) {
  Setting s = small_panels();
  const Seconds whole = train(s).time;
  for (int i = 1; i < 32; ++i) {
    const auto kind = i / 4 % 2 == 0 ? fleet::ChurnKind::leave : fleet::ChurnKind::join;
    s.churn.push_back({whole * (i / 32.0), DeviceId(i % 3), kind, 1.0});
  }
  const Outcome outcome = train(s);
  EXPECT_EQ(outcome.hash, bits_of_the_server_alone());
  EXPECT_GT(outcome.lost, 0);
}

TEST(Panels, OfDevicesThatLie) {
  for (const auto lie : {fleet::InjectedFaultKind::element, fleet::InjectedFaultKind::swap_rows,
                         fleet::InjectedFaultKind::bias, fleet::InjectedFaultKind::stale}) {
    Setting s = small_panels();
    s.churn.push_back({Seconds(0), DeviceId(1), fleet::ChurnKind::faulty, 1.0, lie});
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, bits_of_the_server_alone()) << static_cast<int>(lie);
    EXPECT_EQ(outcome.distrusted, std::vector{DeviceId(1)}) << static_cast<int>(lie);
  }
}

// A result that comes before all that it needs was sent is no result: nothing of it is put in its place, and who sent
// it is not asked again.
TEST(Panels, AnsweredBeforeTheyAreSent) {
  Setting s = small_panels();
  int forged = 0;
  const Ended ended = run(s, {}, [&](Between& rank) {
    rank.on_send = [&forged](int, comm::Frame& frame) {
      const auto header = Between::header_of(frame);
      if (!header || header->kind != comm::Kind::result || header->part.of != PartOf::k_blocks) return;
      comm::Header whole = *header;
      whole.part = {};
      comm::ResultDraft draft = comm::begin_result(whole);
      std::fill(draft.outputs[0].begin(), draft.outputs[0].end(), std::byte{0});
      frame = comm::seal(std::move(draft));
      ++forged;
    };
  });
  EXPECT_EQ(ended.hash, bits_of_the_server_alone());
  EXPECT_GT(forged, 0);
  EXPECT_GT(ended.rejected, 0);
  for (const DeviceId id : ended.distrusted) EXPECT_EQ(id.value % 2, 0) << "of the honest rank: " << id.value;
  EXPECT_FALSE(ended.distrusted.empty());
}

}  // namespace
}  // namespace cleave::testing_run
