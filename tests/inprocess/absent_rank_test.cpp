// Ranks that refuse, run another version, say nothing or die before the first step: the run starts without them and
// ends with the same bits; without any rank it does not start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/error.hpp"
#include "cleave/comm/handshake.hpp"
#include "run.hpp"

namespace cleave::testing_run {
namespace {

using ::testing::HasSubstr;

enum class Start { refuses, other_version, silent, dies };

void behave(comm::Transport& endpoint, Start how) {
  switch (how) {
    case Start::refuses: endpoint.send(0, comm::encode_refusal("no such kernels here")); break;
    case Start::other_version:
      endpoint.send(0, comm::encode(comm::Hello{.pid = 12, .host = "h\xFFst", .version = "0.0.0"}));
      break;
    case Start::silent: break;
    case Start::dies: (void)endpoint.close(Seconds(0)); break;
  }
}

const char* reason_of(Start how) {
  switch (how) {
    case Start::refuses: return "no such kernels here";
    case Start::other_version: return "it runs cleave 0.0.0";
    case Start::silent: return "no answer within";
    case Start::dies: return "died";
  }
  return "";
}

class AbsentRank : public ::testing::TestWithParam<std::tuple<Start, server::ClockMode>> {};

TEST_P(AbsentRank, TheRunStartsWithoutIt) {
  const auto [how, clock] = GetParam();
  Setting s;
  s.steps = 2;
  const std::uint64_t alone = train(s).hash;
  s.devices = unlike_devices(5);
  s.clock = clock;
  server::TrainerOptions options = options_of(s);
  options.fleet.start_limit = Seconds(how == Start::silent ? 2 : 60);

  comm::LoopbackHub hub(4);
  const std::unique_ptr<comm::Transport> server = hub.endpoint(0), absent = hub.endpoint(2);
  behave(*absent, how);
  std::vector<std::thread> hosts;
  for (const int rank : {1, 3}) {
    hosts.emplace_back([endpoint = std::shared_ptr<comm::Transport>(hub.endpoint(rank))] {
      (void)device::run_device_host(*endpoint);
    });
  }
  server::ParameterStore parameters = initial_parameters(s);
  {
    server::Trainer trainer(parameters, options, server.get());
    EXPECT_THAT(trainer.ranks()[2].absent, HasSubstr(reason_of(how)));
    EXPECT_EQ(trainer.ranks()[1].absent, "");
    for (std::int64_t step = 0; step < s.steps; ++step) {
      const server::StepResult result = trainer.step(step, batch_of(s, step));
      EXPECT_EQ(result.report.lost, 0) << "work was given to a rank that never came";
    }
    EXPECT_EQ(trainer.say_goodbye(Seconds(10)).size(), 1u);
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(parameters.hash(), alone);
}

INSTANTIATE_TEST_SUITE_P(
    Starts, AbsentRank,
    ::testing::Combine(::testing::Values(Start::refuses, Start::other_version, Start::silent, Start::dies),
                       ::testing::Values(server::ClockMode::virtual_time, server::ClockMode::off)));

TEST(NoRank, IsAnErrorThatSaysWhy) {
  Setting s;
  s.devices = unlike_devices(2);
  comm::LoopbackHub hub(3);
  const std::unique_ptr<comm::Transport> server = hub.endpoint(0), first = hub.endpoint(1), second = hub.endpoint(2);
  behave(*first, Start::refuses);
  behave(*second, Start::dies);
  server::ParameterStore parameters = initial_parameters(s);
  try {
    const server::Trainer trainer(parameters, options_of(s), server.get());
    FAIL() << "a run without ranks";
  } catch (const EnvironmentError& error) { EXPECT_THAT(error.what(), HasSubstr("no such kernels here")); }
}

}  // namespace
}  // namespace cleave::testing_run
