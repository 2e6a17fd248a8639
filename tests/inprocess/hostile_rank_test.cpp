// A rank that answers what nobody asked, answers twice, under other tasklets' names, with other shapes, and sends
// rubbish: the server drops it all or leaves the devices out, and the run ends with the same bits.
#include <gtest/gtest.h>

#include <algorithm>

#include "passing_on.hpp"
#include "run.hpp"

namespace cleave::testing_run {
namespace {

enum class Trick { twice, unasked, other_name, other_shape, other_device, rubbish, stub };

/// Passes everything on; beside each result it sends a message of its own, before or after it.
class Hostile final : public PassingOn {
 public:
  Hostile(std::shared_ptr<comm::Transport> inner, Trick trick) : PassingOn(std::move(inner)), trick_(trick) {}
  void send(int dest, comm::Frame frame) override {
    frame = comm::seal_payload(std::move(frame));
    const auto result = comm::decode_result(frame);
    if (!result) return PassingOn::send(dest, std::move(frame));
    comm::Frame forged = forge(*result, frame);
    PassingOn::send(dest, std::move(forged));
    PassingOn::send(dest, std::move(frame));
  }

 private:
  comm::Frame forge(const comm::ResultView& result, const comm::Frame& honest) const {
    comm::Header header = result.header;
    switch (trick_) {
      case Trick::twice: return honest.copy();
      case Trick::unasked: header.tasklet = TaskletId(header.tasklet.value + 1'000'000); break;
      case Trick::other_name: header.tasklet = TaskletId(header.tasklet.value ^ 1); break;
      case Trick::other_device: header.device = DeviceId(header.device.value ^ 1); break;
      case Trick::other_shape:
        if (header.work == comm::Work::gemm) {
          header.gemm.m += 1;
        } else {
          header.attention.pairs += 1;
        }
        break;
      case Trick::rubbish: {
        comm::Frame frame(300);
        std::fill_n(frame.data(), 300, std::byte{0x5A});
        return frame;
      }
      case Trick::stub: {
        comm::Frame frame(10);
        std::copy_n(honest.data(), 10, frame.data());
        return frame;
      }
    }
    comm::ResultDraft draft = comm::begin_result(header);
    for (std::size_t i = 0; i < draft.outputs.size(); ++i) {
      std::fill(draft.outputs[i].begin(), draft.outputs[i].end(), std::byte{1});
      std::copy_n(result.outputs[i].begin(), std::min(result.outputs[i].size(), draft.outputs[i].size()),
                  draft.outputs[i].begin());
    }
    return comm::seal(std::move(draft));
  }

  Trick trick_;
};

/// Trains on s.device_ranks ranks, of which rank 1 is a Host made of its transport and `made_of`, and the others are
/// honest. `look` at the trainer before it says goodbye. Returns: the parameters' hash.
template <class Host, class Look, class... MadeOf>
std::uint64_t train_beside(const Setting& s, const server::TrainerOptions& options, const Look& look,
                           const MadeOf&... made_of) {
  comm::LoopbackHub hub(1 + s.device_ranks);
  const std::unique_ptr<comm::Transport> server = hub.endpoint(0);
  std::vector<std::thread> hosts;
  for (int rank = 1; rank <= s.device_ranks; ++rank) {
    hosts.emplace_back([endpoint = std::shared_ptr<comm::Transport>(hub.endpoint(rank)), rank, made_of...] {
      if (rank == 1) {
        Host host(endpoint, made_of...);
        (void)device::run_device_host(host);
      } else {
        (void)device::run_device_host(*endpoint);
      }
    });
  }
  server::ParameterStore parameters = initial_parameters(s);
  {
    server::Trainer trainer(parameters, options, server.get());
    for (std::int64_t step = 0; step < s.steps; ++step) (void)trainer.step(step, batch_of(s, step));
    look(trainer);
    (void)trainer.say_goodbye(Seconds(10));
  }
  for (std::thread& host : hosts) host.join();
  return parameters.hash();
}

class HostileRank : public ::testing::TestWithParam<Trick> {};

TEST_P(HostileRank, ChangesNoBit) {
  Setting s;
  s.steps = 2;
  const std::uint64_t honest = train(s).hash;
  s.devices = unlike_devices(4);
  s.device_ranks = 2;
  s.verification = {.mode = server::VerifyMode::all, .seed = 8};
  server::TrainerOptions options = options_of(s);
  options.fleet.patience = Seconds(2);
  const auto look = [](const server::Trainer& trainer) {
    for (const DeviceId id : trainer.distrusted()) EXPECT_EQ(id.value % 2, 0) << "of the honest rank: " << id.value;
  };
  EXPECT_EQ(train_beside<Hostile>(s, options, look, GetParam()), honest);
}

/// Works as it should, but says that each block took it days.
class Boastful final : public PassingOn {
 public:
  using PassingOn::PassingOn;
  static constexpr Seconds kDays{1e6};
  void send(int dest, comm::Frame frame) override {
    frame = comm::seal_payload(std::move(frame));
    if (const auto result = comm::decode_result(frame)) {
      comm::ResultDraft draft = comm::begin_result(result->header);
      for (std::size_t i = 0; i < draft.outputs.size(); ++i)
        std::ranges::copy(result->outputs[i], draft.outputs[i].begin());
      comm::set_timing(draft, kDays, kDays);
      frame = comm::seal(std::move(draft));
    }
    PassingOn::send(dest, std::move(frame));
  }
};

// No block took longer than it was waited for.
TEST(BoastfulRank, IsNotBelieved) {
  Setting s = small_setting();
  s.devices = alike_devices(2);
  s.verification = {.mode = server::VerifyMode::all, .seed = 8};
  s.device_ranks = 1;
  s.steps = 1;
  (void)train_beside<Boastful>(s, options_of(s), [](const server::Trainer& trainer) {
    EXPECT_GT(trainer.verification().blocks, 0);
    EXPECT_LT(trainer.verification().device_time, Boastful::kDays);
  });
}

/// Works as it should, but refuses to say as a second device what it computed.
class Unwilling final : public PassingOn {
 public:
  using PassingOn::PassingOn;
  void send(int dest, comm::Frame frame) override {
    const auto header = comm::decode(frame);
    if (header && header->kind == comm::Kind::digest)
      frame = comm::encode_refused(header->tasklet, header->device, comm::Reason::absent, "no");
    PassingOn::send(dest, std::move(frame));
  }
};

// The server compares itself what nobody else does.
TEST(UnwillingRank, ThatIsNoWitnessHoldsNobodyUp) {
  for (const server::ClockMode clock : {server::ClockMode::virtual_time, server::ClockMode::off}) {
    Setting s = in_stages(small_setting(), alike_devices(4), 1);
    s.clock = clock;
    s.server_compute = FlopsPerSecond(1e8);  // so that devices watch each other's sums
    s.verification = {.mode = server::VerifyMode::quorum, .fraction = 1.0, .seed = 8};
    const auto look = [](const server::Trainer& trainer) {
      EXPECT_TRUE(trainer.distrusted().empty());
      EXPECT_GT(trainer.verification().checked, 0);
    };
    EXPECT_EQ(train_beside<Unwilling>(s, options_of(s), look), honest_bits(s));
  }
}

/// Changes a bit of the sums that it sends as an owner, or of the digests of those that it watches, and nothing else.
class FalseSums final : public PassingOn {
 public:
  FalseSums(std::shared_ptr<comm::Transport> inner, comm::Kind kind) : PassingOn(std::move(inner)), kind_(kind) {}
  void send(int dest, comm::Frame frame) override {
    frame = comm::seal_payload(std::move(frame));
    const auto header = comm::decode(frame);
    if (header && header->kind == kind_ && header->work == comm::Work::stage &&
        header->stage_task.errand == comm::StageErrand::send_sums) {
      comm::ResultDraft draft;  // which has a checksum of its own again
      draft.frame = std::move(frame);
      draft.frame.data()[draft.frame.size() - 1] ^= std::byte{1};
      frame = comm::seal(std::move(draft));
    }
    PassingOn::send(dest, std::move(frame));
  }

 private:
  comm::Kind kind_;
};

// Of an owner and who watches it, the one that is wrong is accused and not the other.
TEST(FalseSumsOfARank, AreFoundAndNobodyElseIsAccused) {
  for (const comm::Kind kind : {comm::Kind::result, comm::Kind::digest}) {
    for (const server::ClockMode clock : {server::ClockMode::virtual_time, server::ClockMode::off}) {
      Setting s = in_stages(small_setting(), alike_devices(4), 1);
      s.clock = clock;
      s.device_ranks = 2;
      s.server_compute = FlopsPerSecond(1e8);  // so that devices watch each other's sums
      s.verification = {.mode = server::VerifyMode::quorum, .fraction = 1.0, .seed = 8};
      const auto look = [&](const server::Trainer& trainer) {
        EXPECT_FALSE(trainer.verification().wrong.empty()) << comm::name_of(kind);
        for (const server::Finding& finding : trainer.verification().wrong) {
          EXPECT_EQ(finding.device.value % 2, 0) << "of the honest rank: " << finding.device.value;
          EXPECT_EQ(finding.digest, kind == comm::Kind::digest);
        }
      };
      EXPECT_EQ(train_beside<FalseSums>(s, options_of(s), look, kind), honest_bits(s)) << comm::name_of(kind);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tricks, HostileRank,
                         ::testing::Values(Trick::twice, Trick::unasked, Trick::other_name, Trick::other_shape,
                                           Trick::other_device, Trick::rubbish, Trick::stub));

}  // namespace
}  // namespace cleave::testing_run
