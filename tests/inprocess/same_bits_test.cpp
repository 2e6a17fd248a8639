// The parameters after training are the same bits for any fleet, plan, clock, fault and number of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "cleave/server/checkpointing.hpp"
#include "run.hpp"

namespace cleave::testing_run {
namespace {

// The server alone, one thread: what every other run must equal.
std::uint64_t reference_hash() {
  static const std::uint64_t hash = train(Setting{}).hash;
  return hash;
}

TEST(SameBits, TrainingLearns) {
  Setting s;
  s.steps = 8;
  const Outcome outcome = train(s);
  EXPECT_NEAR(outcome.first_loss, std::log(61.0), 0.1);
  EXPECT_LT(outcome.last_loss, outcome.first_loss - 0.3);
}

TEST(SameBits, AnyNumberOfDevicesAndRanks) {
  for (const auto& [devices, ranks] : {std::pair{1, 1}, {3, 1}, {3, 2}, {8, 3}, {40, 2}}) {
    Setting s;
    s.devices = unlike_devices(devices);
    s.device_ranks = ranks;
    EXPECT_EQ(train(s).hash, reference_hash()) << devices << " devices on " << ranks << " ranks";
  }
}

TEST(SameBits, AnyPartition) {
  for (const plan::Partition partition :
       {plan::Partition::equal, plan::Partition::rows, plan::Partition::grid, plan::Partition::paper}) {
    Setting s;
    s.devices = unlike_devices(5);
    s.partition = partition;
    EXPECT_EQ(train(s).hash, reference_hash()) << partition.name();
  }
}

TEST(SameBits, AnyClockAndThreads) {
  for (const server::ClockMode clock : {server::ClockMode::off, server::ClockMode::wall}) {
    Setting s;
    s.devices = unlike_devices(4);
    for (fleet::DeviceProfile& device : s.devices) {
      device.compute = FlopsPerSecond(1e11);
      device.downlink = device.uplink = BytesPerSecond(1e9);
    }
    s.device_ranks = 2;
    s.clock = clock;
    s.threads = 2;
    EXPECT_EQ(train(s).hash, reference_hash()) << static_cast<int>(clock);
  }
}

// Operands in panels of some rows, for every type on the wire and every block checked.
TEST(SameBits, Panels) {
  for (const DType wire : {DType::f32, DType::bf16}) {
    Setting s;
    s.wire = wire;
    const Outcome whole = train(s);
    s.devices = unlike_devices(3);
    s.device_ranks = 2;
    s.verification = {.mode = server::VerifyMode::all};
    s.parts = kSmallParts;
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, whole.hash) << name_of(wire);
    EXPECT_EQ(outcome.rejected, 0);
    EXPECT_GT(outcome.messages, 2 * outcome.tasklets);  // a task and a result each, had there been no panels
  }
}

TEST(SameBits, LittleMemoryMeansMorePieces) {
  Setting s;
  s.devices = unlike_devices(3);
  set_memory(s, 256 << 10);
  EXPECT_EQ(train(s).hash, reference_hash());
}

// Row groups whose weights stay on the devices.
Setting groups_that_keep() {
  Setting s;
  s.devices = unlike_devices(16);
  s.device_ranks = 3;
  s.row_groups = 4;
  s.keep_columns = plan::KeepColumns::always;
  return s;
}

TEST(SameBits, WeightsKeptFromRowGroupToRowGroup) {
  for (const server::ClockMode clock : {server::ClockMode::virtual_time, server::ClockMode::off}) {
    Setting s = groups_that_keep();
    s.clock = clock;
    const Outcome outcome = train(s);
    EXPECT_EQ(outcome.hash, reference_hash());
    EXPECT_EQ(outcome.lost, 0);
    EXPECT_EQ(outcome.rejected, 0);
    s.parts = kSmallParts;
    const Outcome in_panels = train(s);
    EXPECT_EQ(in_panels.hash, reference_hash());
    EXPECT_EQ(in_panels.rejected, 0);
    EXPECT_GT(in_panels.messages, 2 * in_panels.tasklets);
    EXPECT_LT(outcome.bytes_down, [&] {
      s.keep_columns = plan::KeepColumns::never;
      return train(s).bytes_down;
    }());
  }
}

TEST(SameBits, WeightsKeptAndCheckedWhileDevicesLeave) {
  Setting s = groups_that_keep();
  s.verification = {.mode = server::VerifyMode::all, .fraction = 1.0, .seed = 99};
  s.parts = kSmallParts;
  const Seconds whole = train(s).time;
  for (int i = 1; i < 24; ++i) {
    const auto kind = i / 8 % 2 == 0 ? fleet::ChurnKind::leave : fleet::ChurnKind::join;
    s.churn.push_back({whole * (i / 24.0), DeviceId(i % 8), kind, 1.0});
  }
  const Outcome outcome = train(s);
  EXPECT_EQ(outcome.hash, reference_hash());
  EXPECT_GT(outcome.lost, 0);
  EXPECT_EQ(outcome.rejected, 0);
}

TEST(SameBits, DevicesThatLeaveAndJoin) {
  Setting s;
  s.devices = unlike_devices(4);
  const Seconds whole = train(s).time;
  for (int i = 1; i < 24; ++i) {
    const DeviceId device(i % 4);
    s.churn.push_back(
        {whole * (i / 24.0), device, i / 4 % 2 == 0 ? fleet::ChurnKind::leave : fleet::ChurnKind::join, 1.0});
  }
  const Outcome outcome = train(s);
  EXPECT_EQ(outcome.hash, reference_hash());
  EXPECT_GT(outcome.lost, 0);
  EXPECT_EQ(outcome.lost <= outcome.redone, true);
}

TEST(SameBits, EveryDeviceLeaves) {
  Setting s;
  s.devices = unlike_devices(3);
  const Seconds whole = train(s).time;
  for (int i = 0; i < 3; ++i) s.churn.push_back({whole * (0.2 + 0.1 * i), DeviceId(i), fleet::ChurnKind::leave, 1.0});
  const Outcome outcome = train(s);
  EXPECT_EQ(outcome.hash, reference_hash());
}

TEST(SameBits, DevicesThatLieAreFoundAndLeftOut) {
  Setting s;
  s.devices = unlike_devices(5);
  s.verification = {.mode = server::VerifyMode::all, .fraction = 1.0, .seed = 99};
  s.churn = {{Seconds(0), DeviceId(1), fleet::ChurnKind::faulty, 1.0},
             {Seconds(0), DeviceId(3), fleet::ChurnKind::faulty, 1.0}};
  const Outcome outcome = train(s);
  EXPECT_EQ(outcome.hash, reference_hash());
  EXPECT_GE(outcome.rejected, 1);
  EXPECT_FALSE(outcome.distrusted.empty());
  for (const DeviceId id : outcome.distrusted) EXPECT_TRUE(id == DeviceId(1) || id == DeviceId(3)) << id.value;
}

TEST(SameBits, LiesThatNobodyChecksDoChangeBits) {
  Setting s;
  s.devices = unlike_devices(5);
  s.churn = {{Seconds(0), DeviceId(3), fleet::ChurnKind::faulty, 1.0}};
  EXPECT_NE(train(s).hash, reference_hash());
}

TEST(SameBits, ResumedFromACheckpoint) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("cleave-resume-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  Setting s;
  s.devices = unlike_devices(2);
  for (std::int64_t cut = 1; cut < s.steps; ++cut) {
    const fs::path file = folder / "checkpoint-1.h5";
    server::ParameterStore first = initial_parameters(s);
    (void)train(s, first, 0, cut);
    server::save_checkpoint(file, first, s.model, {.step = cut, .seed = 11, .tokenizer = "byte"});

    server::ParameterStore second(model::build_step(
        s.model, {.kind = model::StepKind::evaluate, .batch = 1, .clip = false, .freeze = {}, .loss_rows = 0}));
    const server::RunState state = server::load_checkpoint(file, second, s.model);
    EXPECT_EQ(state.step, cut);
    EXPECT_EQ(train(s, second, state.step, s.steps).hash, reference_hash()) << "cut after " << cut;
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace cleave::testing_run
