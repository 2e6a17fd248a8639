// Training in stages with real numbers, over device ranks in this process: the bits of training in tiles, whatever the
// devices, the layout, the clock and what becomes of devices and messages.
#include <gtest/gtest.h>

#include <algorithm>

#include "run.hpp"
#include "support/faulty_transport.hpp"

namespace cleave::testing_run {
namespace {

constexpr std::uint64_t kSchedules = 60;

Setting in_stages(Setting setting, std::vector<fleet::DeviceProfile> devices, int ranks) {
  setting.devices = std::move(devices);
  setting.device_ranks = ranks;
  setting.layout = sched::Layout::stages;
  return setting;
}

TEST(Stages, TheSameBitsAsTilesForAnyDevicesAndRanks) {
  const Outcome wanted = train(small_setting());
  for (const auto& [devices, ranks] : std::vector<std::pair<std::int64_t, int>>{{2, 1}, {3, 2}, {5, 5}, {9, 3}}) {
    SCOPED_TRACE(devices);
    const Outcome got = train(in_stages(small_setting(), unlike_devices(devices), ranks));
    EXPECT_EQ(got.hash, wanted.hash);
    EXPECT_EQ(got.first_loss, wanted.first_loss);
    EXPECT_EQ(got.last_loss, wanted.last_loss);
  }
}

TEST(Stages, AllFamiliesAndOddShapes) {
  for (const std::string family : {"gpt2", "opt", "llama"}) {
    Setting s = small_setting();
    s.model.family = family;
    s.model.n_layer = 2;
    s.model.n_head = 4;
    s.model.n_kv_head = family == "llama" ? 2 : 4;
    s.model.d_model = 32;
    s.model.d_ff = 70;
    s.model.seq_len = s.model.max_pos = 300;  // chunks of 128 do not divide it
    s.model.tie_embeddings = family != "opt";
    s.batch = 3;
    SCOPED_TRACE(family);
    const std::uint64_t wanted = train(s).hash;
    for (const std::int64_t chunk : {128, 256, 300}) {
      s.chunk_tokens = chunk;
      EXPECT_EQ(train(in_stages(s, alike_devices(4), 2)).hash, wanted) << chunk;
    }
  }
}

TEST(Stages, FrozenTensorsNoClippingAndEvaluationsBetween) {
  for (const std::vector<std::string>& freeze : std::vector<std::vector<std::string>>{
           {}, {"*wte*", "*wpe*"}, {"*ln_*"}, {"*h.0.*", "*wte*", "*wpe*"}, {"*attn*"}}) {
    Setting s = small_setting();
    s.model.n_layer = 2;
    s.freeze = freeze;
    s.grad_clip = 0;
    const std::uint64_t wanted = train(s).hash;
    s.evaluations = 2;
    EXPECT_EQ(train(in_stages(s, alike_devices(3), 2)).hash, wanted) << freeze.size();
  }
}

TEST(Stages, EveryClockDecidesTheSameBits) {
  const std::uint64_t wanted = train(small_setting()).hash;
  Setting s = in_stages(small_setting(), unlike_devices(5), 2);
  const Outcome modelled = train(s);
  s.clock = server::ClockMode::wall;
  const Outcome wall = train(s);
  EXPECT_EQ(wall.hash, wanted);
  EXPECT_EQ(wall.time, modelled.time);
  s.clock = server::ClockMode::off;
  EXPECT_EQ(train(s).hash, wanted);
}

// What train says of time and bytes, simulate says.
TEST(Stages, TakeTheTimeOfTheSimulator) {
  const Setting s = in_stages(small_setting(), unlike_devices(5), 2);
  const Outcome real = train(s);
  const server::TrainerOptions options = options_of(s);
  const model::StepGraph graph = model::build_step(
      options.model, {.kind = model::StepKind::train, .batch = s.batch, .clip = true, .freeze = {}, .loss_rows = 0});
  sched::SimulatedFleet fleet(options.devices, options.server(), options.wire);
  sched::StageScheduler scheduler(fleet, graph, sched::stage_scheduler_options(options));
  Seconds time{0};
  Bytes down{0};
  for (std::int64_t step = 0; step < s.steps; ++step) {
    const sched::StepReport report = scheduler.run();
    time += report.time;
    down += report.bytes_down;
  }
  EXPECT_EQ(real.time, time);
  EXPECT_EQ(real.bytes_down, down);
}

fleet::ChurnTrace random_losses(std::uint64_t seed, std::int64_t devices, Seconds whole) {
  const Random random(seed, Purpose::test, 1);
  fleet::ChurnTrace trace;
  const std::uint64_t events = 1 + random.below(0, 20);
  for (std::uint64_t i = 1; i <= events; ++i) {
    const DeviceId device(static_cast<std::int64_t>(random.below(3 * i, static_cast<std::uint64_t>(devices))));
    const Seconds at = whole * (1.5 * random.uniform(3 * i + 1));
    constexpr fleet::ChurnKind kKinds[] = {fleet::ChurnKind::leave, fleet::ChurnKind::leave, fleet::ChurnKind::join,
                                           fleet::ChurnKind::join,  fleet::ChurnKind::slow,  fleet::ChurnKind::hang};
    const fleet::ChurnKind kind = kKinds[random.below(3 * i + 2, 6)];
    trace.push_back({at, device, kind, kind == fleet::ChurnKind::slow ? 0.3 : 1.0});
  }
  std::stable_sort(trace.begin(), trace.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
  return trace;
}

TEST(Stages, DevicesThatComeAndGoLeaveNoTrace) {
  Setting plain = small_setting();
  plain.model.n_layer = 2;
  const std::uint64_t wanted = train(plain).hash;
  Setting s = in_stages(plain, unlike_devices(6), 2);
  const Seconds whole = train(s).time;
  std::int64_t lost = 0;
  for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
    s.churn = random_losses(seed, 6, whole);
    const Outcome outcome = train(s);
    ASSERT_EQ(outcome.hash, wanted) << "schedule " << seed;
    lost += outcome.lost;
  }
  EXPECT_GT(lost, static_cast<std::int64_t>(kSchedules));
}

struct Fault {
  comm::Kind kind;
  comm::FaultKind fault;
  std::int64_t skip;
};

class StageWireFaults : public ::testing::TestWithParam<Fault> {};

TEST_P(StageWireFaults, TheRunEndsWithTheSameBits) {
  const std::uint64_t wanted = train(small_setting()).hash;
  const Setting s = in_stages(small_setting(), unlike_devices(4), 2);
  server::TrainerOptions options = options_of(s);
  options.fleet.patience = Seconds(0.15);
  const Fault& c = GetParam();
  comm::LoopbackHub hub(3);
  comm::FaultyTransport server(
      hub.endpoint(0),
      {{.direction = c.kind == comm::Kind::task ? comm::Direction::sending : comm::Direction::receiving,
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
  EXPECT_EQ(parameters.hash(), wanted);
  EXPECT_GT(server.caused().front(), 0) << "no message was hit";
}

std::vector<Fault> all_faults() {
  std::vector<Fault> faults;
  for (const comm::Kind kind : {comm::Kind::task, comm::Kind::result}) {
    for (const comm::FaultKind fault : {comm::FaultKind::drop, comm::FaultKind::delay, comm::FaultKind::twice,
                                        comm::FaultKind::corrupt, comm::FaultKind::truncate}) {
      for (const std::int64_t skip : {0, 20, 60}) faults.push_back({kind, fault, skip});
    }
  }
  return faults;
}

std::string name_of_fault(const ::testing::TestParamInfo<Fault>& info) {
  static constexpr const char* kFaults[] = {"drop", "delay", "twice", "corrupt", "truncate"};
  return std::string(comm::name_of(info.param.kind)) + "_" + kFaults[static_cast<int>(info.param.fault)] + "_after" +
         std::to_string(info.param.skip);
}

INSTANTIATE_TEST_SUITE_P(Kinds, StageWireFaults, ::testing::ValuesIn(all_faults()), name_of_fault);

}  // namespace
}  // namespace cleave::testing_run
