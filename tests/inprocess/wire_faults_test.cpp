// Messages that are dropped, delayed, doubled, damaged or cut short, in either direction, early or late in a run: the
// run goes on and ends with the same bits.
#include <gtest/gtest.h>

#include "run.hpp"
#include "support/faulty_transport.hpp"

namespace cleave::testing_run {
namespace {

struct Case {
  comm::Kind kind;
  comm::FaultKind fault;
  std::int64_t skip;  // messages of the kind that pass before: the phase
  bool panels;        // operands and results travel in panels
};

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  static constexpr const char* kFaults[] = {"drop", "delay", "twice", "corrupt", "truncate"};
  return std::string(comm::name_of(info.param.kind)) + "_" + kFaults[static_cast<int>(info.param.fault)] + "_after" +
         std::to_string(info.param.skip) + (info.param.panels ? "_panels" : "");
}

class WireFaults : public ::testing::TestWithParam<Case> {};

TEST_P(WireFaults, TheRunEndsWithTheSameBits) {
  Setting s = small_setting();
  if (GetParam().panels) s.batch = 100;  // 1600 tokens: weight gradients come in runs of K
  const std::uint64_t expected = train(s).hash;
  s.devices = unlike_devices(4);
  if (GetParam().panels) s.parts = kSmallParts;
  server::TrainerOptions options = options_of(s);
  options.fleet.patience = Seconds(0.15);

  const Case& c = GetParam();
  const comm::Direction direction = c.kind == comm::Kind::task ? comm::Direction::sending : comm::Direction::receiving;
  comm::LoopbackHub hub(3);
  comm::FaultyTransport server(hub.endpoint(0),
                               {{.direction = direction,
                                 .kind = c.kind,
                                 .fault = c.fault,
                                 .probability = 0.5,
                                 .skip = c.skip,
                                 .count = 4,
                                 .delay = Seconds(0.3)}},
                               5);
  std::vector<std::thread> hosts;
  for (int rank = 1; rank < 3; ++rank) {
    hosts.emplace_back([endpoint = std::shared_ptr<comm::Transport>(hub.endpoint(rank))] {
      (void)device::run_device_host(*endpoint);
    });
  }
  server::ParameterStore parameters = initial_parameters(s);
  {
    server::Trainer trainer(parameters, options, &server);
    for (std::int64_t step = 0; step < s.steps; ++step) (void)trainer.step(step, batch_of(s, step));
    (void)trainer.say_goodbye(Seconds(10));
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(parameters.hash(), expected);
  EXPECT_GT(server.caused().front(), 0) << "no message was hit";
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const comm::Kind kind : {comm::Kind::task, comm::Kind::result}) {
    for (const comm::FaultKind fault : {comm::FaultKind::drop, comm::FaultKind::delay, comm::FaultKind::twice,
                                        comm::FaultKind::corrupt, comm::FaultKind::truncate}) {
      for (const std::int64_t skip : {0, 40}) {
        for (const bool panels : {false, true}) cases.push_back({kind, fault, skip, panels});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Kinds, WireFaults, ::testing::ValuesIn(all_cases()), name_of);

}  // namespace
}  // namespace cleave::testing_run
