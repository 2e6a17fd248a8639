// Stage plans over generated fleets: stages and slices fill the model exactly, no device's memory is exceeded, every
// role may have two sequences open each way; refusals name a device and what it lacks; bounds hold.
#include "cleave/plan/stage_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "cleave/base/error.hpp"
#include "cleave/base/random.hpp"
#include "cleave/model/family.hpp"
#include "cleave/plan/stage_bound.hpp"
#include "cleave/plan/stage_cost.hpp"
#include "support/cases.hpp"

namespace cleave::plan {
namespace {

using testing_support::all_or_few;

model::ModelConfig config_of(const std::string& family, std::int64_t layers, std::int64_t width) {
  model::ModelConfig config;
  config.family = family;
  config.n_layer = layers;
  config.n_head = config.n_kv_head = 8;
  if (family == "llama") config.n_kv_head = 2;
  config.d_model = width;
  config.d_ff = 4 * width;
  config.vocab_size = 5 * width;
  config.seq_len = config.max_pos = 320;
  return config;
}

StageWork work_of(const model::ModelConfig& config, std::int64_t batch, DType wire = DType::f16,
                  std::vector<std::string> freeze = {}) {
  return stage_work_of(model::build_step(config, {.kind = model::StepKind::train,
                                                  .batch = batch,
                                                  .clip = true,
                                                  .freeze = std::move(freeze),
                                                  .loss_rows = 0,
                                                  .row_groups = 1}),
                       wire);
}

// Devices that hold from `least` to `most` bytes; the rates are those of home links, scaled to the model.
std::vector<fleet::DeviceProfile> devices_of(std::int64_t count, double least, double most, std::uint64_t seed) {
  fleet::DeviceGroup group;
  group.name = "edge";
  group.count = count;
  group.compute_flops = {5e10, 7e10};
  group.memory_bytes = {least, most};
  group.downlink_bytes = {1e6, 1e7};
  group.uplink_bytes = {5e5, 1e6};
  group.latency_s = {0, 0.01};
  return fleet::draw_devices({group}, seed);
}

const fleet::ServerProfile kWide{fleet::kUnlimitedRate, fleet::kUnlimitedRate, FlopsPerSecond(1e13),
                                 BytesPerSecond(4e11)};

struct SlicedTensorRange {
  std::int64_t begin = 0, end = 0;
};

SlicedTensorRange rows_of(const model::Piece& head) {
  const model::SlicedTensor& weight = head.tensors.front();
  return {weight.begin, weight.begin + weight.extent};
}

double bytes_of_layer(const StageWork& work) {
  const StageCost layer(work, 0, 2, kChunkTokens);
  return static_cast<double>(
      (layer.weights() + layer.at_work() + layer.open_forward() * 2 + layer.open_backward() * 2).value());
}

void expect_sound(const StageWork& work, const StagePlan& plan, const std::vector<fleet::DeviceProfile>& devices) {
  std::int64_t at = 0;
  std::vector<std::vector<double>> used(static_cast<std::size_t>(plan.rounds()), std::vector<double>(devices.size()));
  std::int64_t round = 0;
  const auto held = [&](std::int64_t of_round, DeviceId device) -> double& {
    return used[static_cast<std::size_t>(of_round)][static_cast<std::size_t>(device.value)];
  };
  for (const Stage& stage : plan.stages) {
    EXPECT_TRUE(stage.round == round || stage.round == round + 1);
    round = stage.round;
    EXPECT_EQ(stage.first, at);
    EXPECT_GT(stage.end, stage.first);
    at = stage.end;
    EXPECT_FALSE(stage.replicas.empty());
    const StageCost cost(work, stage.first, stage.end, plan.chunk);
    EXPECT_EQ(stage.weights.value(), cost.weights().value());
    for (const StageReplica& replica : stage.replicas) {
      EXPECT_GE(replica.forward_slots, 2);
      EXPECT_GE(replica.backward_slots, 2);
      const auto [there, back] = slot_bytes(cost, replica.held);
      EXPECT_EQ(replica.memory.value(),
                (cost.weights() + cost.at_work() + (cost.open_forward() + cost.open_backward()) * kLeastOpen +
                 there * (replica.forward_slots - kLeastOpen) + back * (replica.backward_slots - kLeastOpen) +
                 (replica.kept_slots > 0 ? cost.packed() : Bytes(0)) + cost.kept() * replica.kept_slots)
                    .value());
      held(stage.round, replica.device) += static_cast<double>(replica.memory.value());
      EXPECT_TRUE(replica.kept_slots == 0 || round + 1 == plan.rounds()) << "it does not come back at once";
    }
  }
  EXPECT_EQ(at, std::ssize(work.pieces));
  for (const GradientOwner& owner : plan.owners)
    held(plan.stages[static_cast<std::size_t>(owner.stage)].round, owner.device) +=
        static_cast<double>(owner.memory.value());
  for (const std::vector<double>& of_round : used) {
    for (std::size_t i = 0; i < devices.size(); ++i)
      EXPECT_LE(of_round[i], static_cast<double>(devices[i].memory.value())) << "device " << i;
  }

  // Slices of every group fill every trained tensor.
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::pair<std::int64_t, std::int64_t>>> covered;
  for (const GradientOwner& owner : plan.owners) {
    for (const PieceSlice& slice : owner.slices) {
      for (const TensorSlice& part : tensor_slices(work.pieces[static_cast<std::size_t>(slice.piece)], slice))
        covered[{owner.group, part.tensor.value}].emplace_back(part.begin, part.end);
    }
  }
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (std::int64_t group = 0; group < plan.groups[s]; ++group) {
      for (std::int64_t i = plan.stages[s].first; i < plan.stages[s].end; ++i) {
        // Of a head's part only its own rows.
        std::map<std::int64_t, std::int64_t> elements, begins;
        for (const model::SlicedTensor& tensor : work.pieces[static_cast<std::size_t>(i)].tensors) {
          elements[tensor.tensor.value] += tensor.trained ? tensor.elements() : 0;
          const auto begin = begins.try_emplace(tensor.tensor.value, tensor.begin * tensor.width).first;
          begin->second = std::min(begin->second, tensor.begin * tensor.width);
        }
        for (const auto& [tensor, count] : elements) {
          const std::int64_t begin = begins[tensor], all = begin + count;
          auto parts = covered[{group, tensor}];
          std::erase_if(parts, [&](const auto& part) { return part.second <= begin || part.first >= all; });
          std::ranges::sort(parts);
          std::int64_t end = begin;
          for (const auto& [from, to] : parts) {
            EXPECT_EQ(from, end) << "tensor " << tensor;
            end = to;
          }
          EXPECT_EQ(end, all) << "tensor " << tensor;
        }
      }
    }
  }
}

// Two quick devices with room for everything, as many as a machine's cores: each has the whole model, sums what it ran,
// and keeps as many sequences as its memory holds.
TEST(StagePlan, FewDevicesThatHoldTheWholeModelShareOutSequences) {
  const StageWork work = work_of(config_of("gpt2", 4, 64), 8, DType::f32);
  std::vector<fleet::DeviceProfile> devices = devices_of(2, 1e9, 1e9, 3);
  for (fleet::DeviceProfile& device : devices) {
    device.compute = FlopsPerSecond(1e11);
    device.downlink = device.uplink = BytesPerSecond(5e9);
  }
  const StageOptions options{.server = kWide};
  const StagePlan plan = plan_stages(work, devices, options);
  expect_sound(work, plan, devices);
  Bytes beside_kept{0};
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    EXPECT_EQ(plan.groups[s], 2);
    ASSERT_EQ(plan.stages[s].replicas.size(), 2U);
    for (const StageReplica& replica : plan.stages[s].replicas) EXPECT_EQ(replica.kept_slots, work.batch);
    const StageReplica& first = plan.stages[s].replicas[0];
    beside_kept += first.memory - StageCost(work, plan.stages[s].first, plan.stages[s].end, plan.chunk).kept() * 8;
  }
  for (const GradientOwner& owner : plan.owners) {
    EXPECT_TRUE(owner.replica);
    if (owner.group == 0) beside_kept += owner.memory;
  }
  // With room for three, three are kept; without room for two, none.
  Bytes kept{0};
  for (const Stage& stage : plan.stages) kept += StageCost(work, stage.first, stage.end, plan.chunk).kept();
  for (const auto& [sequences, slots] : {std::pair(3.5, 3), std::pair(1.5, 0)}) {
    for (fleet::DeviceProfile& device : devices)
      device.memory = beside_kept + Bytes(static_cast<std::int64_t>(sequences * static_cast<double>(kept.value())));
    for (const StagePlan& less : stage_candidates(work, devices, options, 64)) {
      expect_sound(work, less, devices);
      if (less.groups.front() != 2 || less.stages.size() != plan.stages.size() || less.chunk != plan.chunk) continue;
      for (const Stage& stage : less.stages) EXPECT_EQ(stage.replicas[0].kept_slots, slots) << sequences;
    }
  }
  // More devices than sequences do not all get one.
  const std::vector<fleet::DeviceProfile> many = devices_of(9, 1e9, 1e9, 3);
  for (const StagePlan& other : stage_candidates(work, many, options, 64)) EXPECT_LT(other.groups.front(), 9);
}

// With much memory some candidates of a pipeline keep sequences, enough of them to fill it; none where it is short.
TEST(StagePlan, ReplicasKeepSequencesWhereTheyHaveRoom) {
  const StageWork work = work_of(config_of("gpt2", 6, 128), 24, DType::f16);
  for (const double memory : {1e9, 1e8, 3e6}) {
    std::int64_t keep = 0;
    const std::vector<fleet::DeviceProfile> devices = devices_of(30, memory, memory, 3);
    const std::vector<StagePlan> plans = stage_candidates(work, devices, {.server = kWide}, 100);
    ASSERT_FALSE(plans.empty()) << memory;
    for (const StagePlan& plan : plans) {
      expect_sound(work, plan, devices);
      for (std::size_t s = 0; s < plan.stages.size(); ++s) {
        const auto above = static_cast<std::int64_t>(plan.stages.size() - 1 - s);
        for (const StageReplica& replica : plan.stages[s].replicas) {
          if (replica.kept_slots == 0) continue;
          ++keep;
          EXPECT_GE(replica.kept_slots, 8);
          EXPECT_LE(replica.kept_slots, 8 + 2 * above / std::ssize(plan.stages[s].replicas));
        }
      }
    }
    EXPECT_EQ(keep > 0, memory > 1e7) << memory;
  }
}

// Where memory is left over: a slow uplink would send for long what is open, so little is, and a quick one loses
// nothing.
TEST(StagePlan, SlowUplinksHaveFewSequencesOpen) {
  const StageWork work = work_of(config_of("opt", 4, 256), 64);
  std::int64_t slow = 0, quick = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    std::vector<fleet::DeviceProfile> devices = devices_of(40, 2e7, 6e7, seed);
    for (std::size_t d = 0; d < devices.size(); d += 5) devices[d].uplink = devices[d].uplink * 0.2;
    const StagePlan plan = plan_stages(work, devices, {kWide, 0});
    for (const Stage& stage : plan.stages) {
      const auto uplink = [&](const StageReplica& replica) {
        return devices[static_cast<std::size_t>(replica.device.value)].uplink.value();
      };
      const double quickest = uplink(*std::ranges::max_element(stage.replicas, {}, uplink));
      for (const StageReplica& replica : stage.replicas) {
        const double share = uplink(replica) / quickest;
        EXPECT_GE(std::min(replica.forward_slots, replica.backward_slots), 2) << seed;
        if (share < 0.25) { EXPECT_LE(replica.forward_slots, 4) << seed; }
        slow += share < 0.25 ? 1 : 0;
        quick += share > 0.5 && replica.forward_slots == 8 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(slow, 10);
  EXPECT_GT(quick, 100);
}

TEST(StagePlan, IsSoundOnGeneratedFleets) {
  Random random(5, Purpose::jitter);
  std::uint64_t laid_out = 0, fleets = all_or_few(60, 15);
  for (std::uint64_t i = 0; i < fleets; ++i) {
    const char* const family = i % 3 == 0 ? "gpt2" : i % 3 == 1 ? "opt" : "llama";
    const auto layers = 1 + static_cast<std::int64_t>(random.uniform(4 * i) * 6);
    const StageWork work =
        work_of(config_of(family, layers, 128), 1 + static_cast<std::int64_t>(random.uniform(4 * i + 1) * 12),
                i % 2 == 0 ? DType::f16 : DType::f32);
    const double layer = bytes_of_layer(work);
    const double least = layer * (0.6 + 2 * random.uniform(4 * i + 2));
    const auto devices = devices_of(3 + static_cast<std::int64_t>(random.uniform(4 * i + 3) * 60), least, 3 * least, i);
    try {
      const StagePlan plan = plan_stages(work, devices, {kWide, 0});
      ++laid_out;
      expect_sound(work, plan, devices);
      const StagePlan again = plan_stages(work, devices, {kWide, 0});
      EXPECT_EQ(plan.forecast.value(), again.forecast.value());
      EXPECT_EQ(plan.owners.size(), again.owners.size());
      const ServerShare none{};
      const double bound = stage_lower_bound(work, plan, devices, kWide, none).value();
      EXPECT_GT(bound, 0);
      EXPECT_LE(floor_of(work, devices, kWide, none).value(), bound * 1.0001) << i;
    } catch (const InputError& error) { EXPECT_NE(std::string(error.what()).find("take"), std::string::npos); }
  }
  EXPECT_GE(3 * laid_out, fleets);
}

std::size_t replicas_of(const StagePlan& plan) {
  std::size_t count = 0;
  for (const Stage& stage : plan.stages) count += stage.replicas.size();
  return count;
}

// Links as quick as processors: the other candidates differ from the first, are as sound, and some leave devices out.
TEST(StagePlan, OffersCandidates) {
  std::size_t several = 0, cut_otherwise = 0, for_fewer = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const StageWork work = work_of(config_of(seed % 2 == 0 ? "opt" : "llama", 6, 128), 8);
    const double layer = bytes_of_layer(work);
    auto devices = devices_of(12 + 4 * static_cast<std::int64_t>(seed), 2 * layer, 6 * layer, seed);
    for (fleet::DeviceProfile& device : devices) {
      device.compute = device.compute * 0.1;
      device.uplink = device.uplink * 10.0;
    }
    const auto found = find_stages(work, devices, {kWide, 0});
    const auto plans = stage_candidates(work, devices, {kWide, 0}, 8);
    ASSERT_TRUE(found && !plans.empty()) << seed;
    EXPECT_LE(plans.size(), 8U);
    EXPECT_EQ(plans[0].forecast.value(), found->forecast.value());
    EXPECT_EQ(plans[0].stages.size(), found->stages.size());
    EXPECT_EQ(plans[0].bytes_down.value(), found->bytes_down.value());
    for (const StagePlan& plan : plans) expect_sound(work, plan, devices);
    for (std::size_t i = 1; i < plans.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const bool same = plans[i].forecast == plans[j].forecast && plans[i].stages.size() == plans[j].stages.size() &&
                          plans[i].owners.size() == plans[j].owners.size();
        EXPECT_FALSE(same) << seed << ": " << i << " is " << j;
      }
      cut_otherwise += plans[i].stages.size() != plans[0].stages.size() ? 1 : 0;
      for_fewer += replicas_of(plans[i]) < replicas_of(plans[0]) ? 1 : 0;
    }
    several += plans.size() > 1 ? 1 : 0;
    EXPECT_EQ(stage_candidates(work, devices, {kWide, 0}, 1).size(), 1U);
  }
  EXPECT_GE(several, 10U);
  EXPECT_GT(cut_otherwise, 0U);
  EXPECT_GT(for_fewer, 0U);
}

TEST(StagePlan, RefusesWhatFitsNoDevice) {
  const StageWork work = work_of(config_of("opt", 4, 128), 8);
  for (const auto& [memory, shown] :
       {std::pair(3e5, "(edge, 300.0 kB)"), std::pair(4e3, "(edge, 4.0 kB)"), std::pair(400.0, "(edge, 400 B)")}) {
    try {
      (void)plan_stages(work, devices_of(40, memory, memory, 1), {kWide, 0});
      FAIL() << "a piece does not fit";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("lacks"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(shown), std::string::npos) << error.what();
    }
  }
}

// Sequences are few, and a device takes longer to read a piece's weights than all of them take to pass: with room for
// everything there is a layout all the same.
TEST(StagePlan, WeightsMayTakeLongerThanSequences) {
  model::ModelConfig config = config_of("llama", 8, 512);
  config.vocab_size = 40'000;
  const StageWork work = work_of(config, 2, DType::f32);
  for (const double down : {2e4, 1e5, 1e6, 1e7}) {
    auto devices = devices_of(64, 2e9, 3e9, 4);
    for (fleet::DeviceProfile& device : devices) {
      device.downlink = BytesPerSecond(down * (1 + 0.01 * static_cast<double>(device.id.value % 40)));
      device.uplink = BytesPerSecond(1e6);
    }
    const std::optional<StagePlan> plan = find_stages(work, devices, {.server = kWide});
    ASSERT_TRUE(plan) << down;
    EXPECT_LT(plan->forecast.value(), 1e9 / down) << down;
  }
}

TEST(StagePlan, OwnsOnlyWhatIsTrained) {
  const StageWork work = work_of(config_of("opt", 3, 128), 4, DType::f16, {"*embed*", "*layers.0.*", "*self_attn.*"});
  const double layer = bytes_of_layer(work);
  const auto devices = devices_of(30, 2 * layer, 4 * layer, 3);
  const StagePlan plan = plan_stages(work, devices, {kWide, 0});
  expect_sound(work, plan, devices);
  for (const GradientOwner& owner : plan.owners) {
    for (const PieceSlice& slice : owner.slices)
      EXPECT_EQ(work.pieces[static_cast<std::size_t>(slice.piece)].kind, model::PieceKind::mlp);
  }
}

std::vector<fleet::DeviceProfile> published(std::int64_t count, std::uint64_t seed = 42) {
  fleet::DeviceGroup group;
  group.name = "edge";
  group.count = count;
  group.compute_flops = {5e12, 7e12};
  group.memory_bytes = {1e9, 3e9};
  group.downlink_bytes = {1e7, 1e8};
  group.uplink_bytes = {5e6, 1e7};
  group.latency_s = {0, 0};
  return fleet::draw_devices({group}, seed);
}

// The published fleet: what a planner may take.
TEST(StagePlan, LaysOutTheLargeModel) {
  model::ModelConfig config = *model::find_preset("opt-13b");
  config.seq_len = 1024;
  const StageWork work = work_of(config, 128);
  const auto devices = published(256);
  const StagePlan plan = plan_stages(work, devices, {kWide, 0});
  expect_sound(work, plan, devices);
  EXPECT_GE(plan.stages.size(), 20U);
  EXPECT_LE(plan.bytes_up.value(), 150'000'000'000);
  EXPECT_LE(plan.bytes_down.value(), 900'000'000'000);
}

// With ample memory a few devices with fast downlinks could hold stages of many layers, which take longer: stages as
// small as those of less memory are tried beside them. By forecast over these fleets 1.05; without that 1.076.
TEST(StagePlan, MoreMemoryHardlyMakesAStepLonger) {
  model::ModelConfig config = *model::find_preset("opt-13b");
  config.seq_len = 1024;
  const StageWork work = work_of(config, 128);
  double little = 0, ample = 0;
  for (std::uint64_t seed = 42; seed < 48; ++seed) {
    std::vector<fleet::DeviceProfile> devices = published(256, seed);
    const auto forecast = [&](double memory) {
      for (fleet::DeviceProfile& device : devices) device.memory = Bytes(static_cast<std::int64_t>(memory));
      return plan_stages(work, devices, {kWide, 0}).forecast.value();
    };
    little += forecast(2e9);
    ample += forecast(16e9);
  }
  EXPECT_LE(ample, 1.06 * little);
}

// Stages of several pieces with many owners that are no replicas: what a slice needs depends on where it lies.
TEST(StagePlan, KeepsTheMemoryOfOwnersInStagesOfSeveralPieces) {
  model::ModelConfig config = *model::find_preset("opt-13b");
  config.seq_len = 1024;
  const StageWork work = work_of(config, 128);
  fleet::ServerProfile narrow = kWide;
  narrow.nic_in = narrow.nic_out = BytesPerSecond(12.5e9);
  for (const std::int64_t count : {512, all_or_few(2048, 257)}) {
    for (const fleet::ServerProfile& server : {kWide, narrow}) {
      const auto devices = published(count);
      expect_sound(work, plan_stages(work, devices, {server, 0}), devices);
    }
  }
}

// Devices whose memory an MLP half fills: its sums, twice its weights, need devices that hold no stage.
TEST(StagePlan, LeavesDevicesToSumsWhereMemoryIsShort) {
  model::ModelConfig config = *model::find_preset("opt-13b");
  config.seq_len = 1024;
  const StageWork work = work_of(config, 128);
  auto devices = published(256);
  for (const std::int64_t memory : {600'000'000, 700'000'000}) {
    for (fleet::DeviceProfile& device : devices) device.memory = Bytes(memory);
    const StagePlan plan = plan_stages(work, devices, {.server = kWide, .rounds = false});
    EXPECT_EQ(plan.rounds(), 1);
    expect_sound(work, plan, devices);
    std::vector<bool> holds(devices.size()), owns(devices.size());
    for (const Stage& stage : plan.stages) {
      for (const StageReplica& replica : stage.replicas) holds[static_cast<std::size_t>(replica.device.value)] = true;
    }
    for (const GradientOwner& owner : plan.owners) owns[static_cast<std::size_t>(owner.device.value)] = true;
    std::int64_t sums_alone = 0;
    for (std::size_t i = 0; i < devices.size(); ++i) sums_alone += owns[i] && !holds[i] ? 1 : 0;
    EXPECT_GE(sums_alone, 64) << memory;
    const ServerShare none{};
    EXPECT_LE(floor_of(work, devices, kWide, none).value(),
              stage_lower_bound(work, plan, devices, kWide, none).value());
  }
}

// Fleets that hold a part of the weights and sums at a time, and some that could hold all of them in few replicas.
TEST(StagePlan, GoesInRoundsWhereMemoryIsShort) {
  model::ModelConfig config = *model::find_preset("opt-13b");
  config.seq_len = 1024;
  const StageWork work = work_of(config, 128);
  const ServerShare none{};
  constexpr std::pair<int, double> kCases[] = {{32, 0.0}, {256, 6e8}, {16, 0.0}, {64, 0.0}};
  for (const auto& [count, memory] : std::span(kCases).first(all_or_few(4, 1))) {
    auto devices = published(count);
    for (fleet::DeviceProfile& device : devices) {
      if (memory > 0) device.memory = Bytes(static_cast<std::int64_t>(memory));
    }
    const StagePlan plan = plan_stages(work, devices, {.server = kWide});
    EXPECT_GT(plan.rounds(), 1) << count;
    expect_sound(with_head_parts(work, plan.head_parts), plan, devices);
    const std::optional<StagePlan> at_once = find_stages(work, devices, {.server = kWide, .rounds = false});
    EXPECT_EQ(at_once.has_value(), count > 64) << count;
    if (at_once) { EXPECT_LT(plan.forecast, at_once->forecast); }
    const Seconds bound = stage_lower_bound(work, plan, devices, kWide, none);
    EXPECT_LE(floor_of(work, devices, kWide, none).value(), bound.value());
    EXPECT_LE(bound.value(), plan.forecast.value());
    for (const StagePlan& other : stage_candidates(work, devices, {.server = kWide}, all_or_few(64, 8)))
      expect_sound(with_head_parts(work, other.head_parts), other, devices);
  }
  // Where memory is not short nothing else is tried.
  const auto devices = published(256);
  for (const StagePlan& plan : stage_candidates(work, devices, {.server = kWide}, 64)) EXPECT_EQ(plan.rounds(), 1);
}

// What fits memory does not depend on links, though the time that stages are cut for does.
TEST(StagePlan, FitsShortMemoryWhateverTheLinks) {
  const std::pair<std::string, std::int64_t> cases[] = {{"opt-13b", 256}, {"opt-1.3b", 32}};
  const std::pair<double, double> home{1e7, 1e8}, slow{5e6, 1e7}, fibre{5e7, 1e8}, alike{2e7, 2e7};
  for (const auto& [name, count] : cases) {
    model::ModelConfig config = *model::find_preset(name);
    config.seq_len = 1024;
    const StageWork work = work_of(config, 128);
    const std::pair<std::pair<double, double>, std::pair<double, double>> links[] = {
        {home, slow}, {alike, alike}, {fibre, slow}, {fibre, fibre}, {home, fibre}};
    for (const auto& [down, up] : std::span(links).first(all_or_few(5, 1))) {
      fleet::DeviceGroup group;
      group.name = "edge";
      group.count = count;
      group.compute_flops = {5e12, 7e12};
      group.memory_bytes = {512e6, 512e6};
      group.downlink_bytes = {down.first, down.second};
      group.uplink_bytes = {up.first, up.second};
      group.latency_s = {0, 0};
      const auto devices = fleet::draw_devices({group}, 42);
      const std::optional<StagePlan> plan = find_stages(work, devices, {kWide, 0});
      ASSERT_TRUE(plan) << name << " with " << down.first << " down, " << up.first << " up";
      expect_sound(with_head_parts(work, plan->head_parts), *plan, devices);
    }
  }
}

// Devices that cannot hold the head: it is cut between blocks of its vocabulary, and every part is a stage.
TEST(StagePlan, CutsAHeadThatFitsNoDevice) {
  model::ModelConfig config = *model::find_preset("opt-13b");
  config.seq_len = 1024;
  const StageWork work = work_of(config, 128);
  auto devices = published(256);
  for (fleet::DeviceProfile& device : devices) device.memory = Bytes(512'000'000);
  const StagePlan plan = plan_stages(work, devices, {kWide, 0});
  const StageWork cut = with_head_parts(work, plan.head_parts);
  EXPECT_EQ(plan.head_parts, 2);
  expect_sound(cut, plan, devices);
  EXPECT_LE(plan.forecast.value(), 600);
  const ServerShare none{};
  EXPECT_LE(floor_of(work, devices, kWide, none).value(), stage_lower_bound(work, plan, devices, kWide, none).value());
}

// Parts share what the head costs, and nothing is left out; only the norm is done by each.
TEST(StageCost, PartsOfAHeadAddUp) {
  model::ModelConfig config = config_of("gpt2", 2, 128);
  config.vocab_size = 20'000;
  const StageWork work = work_of(config, 2);
  const std::int64_t body = std::ssize(work.pieces) - 1;
  const StageCost whole(work, body, body + 1, 128);
  EXPECT_TRUE(whole.is_head());
  for (const std::int64_t parts : {2, 3, 5, 14}) {
    const StageWork cut = with_head_parts(work, parts);
    ASSERT_EQ(std::ssize(cut.pieces), body + parts);
    double elements = 0, products = 0, sums = 0;
    std::int64_t at = 0;
    for (std::int64_t k = 0; k < parts; ++k) {
      const model::Piece& piece = cut.pieces[static_cast<std::size_t>(body + k)];
      const StageCost cost(cut, body + k, body + k + 1, 128);
      EXPECT_TRUE(cost.is_part() && !cost.is_head() && cost.twice());
      const SlicedTensorRange rows = rows_of(piece);
      EXPECT_EQ(rows.begin, at);
      EXPECT_EQ(rows.begin % kBlockK, 0) << "a partial sum of dX is cut";
      EXPECT_EQ(rows.begin % kVocabularyBlock, 0);
      at = rows.end;
      elements += cost.gradient_elements();
      products += cost.backward(0, 320).value() - 320 * piece.norm_forward;
      sums += owner_cost(cut, cost, slices_between(cut, cost, 0, 1), 128).beside.value();
      EXPECT_GE(cost.backward(0, 320).value(), cost.forward(0, 320).value());
      EXPECT_EQ(cost.backward_result(320).value(), 320 * 128 * 4);
      // Of a chunk in fp32 what the forward pass writes, X and dY as they come and go, and the partial sums of dX.
      const double row = 4 * piece.row_elements + 4 * 128 * 2 + 128 * 4;
      EXPECT_EQ(cost.at_work().value(), static_cast<std::int64_t>(128 * row));
    }
    EXPECT_EQ(at, config.vocab_size);
    EXPECT_EQ(elements, whole.gradient_elements());
    EXPECT_NEAR(products, whole.forward(0, 320).value() - 320 * work.pieces.back().norm_forward, 1e-6 * products);
    EXPECT_NEAR(sums, owner_cost(work, whole, slices_between(work, whole, 0, 1), 128).beside.value(), 1e-6 * sums);
  }
}

TEST(StageBound, TheFloorIsATimeWhereLinksAreUnlimited) {
  const StageWork work = work_of(config_of("opt", 3, 128), 4);
  const ServerShare none{};
  for (const bool up : {false, true}) {
    auto devices = devices_of(9, 1e6, 3e6, 2);
    const double limited = floor_of(work, devices, kWide, none).value();
    for (fleet::DeviceProfile& device : devices) (up ? device.uplink : device.downlink) = fleet::kUnlimitedRate;
    const double floor = floor_of(work, devices, kWide, none).value();
    EXPECT_GT(floor, 0) << up;
    EXPECT_LT(floor, limited) << up;
  }
}

// An MLP half of width 96 with 384 hidden columns has two matrices. Each is packed for the forward pass by its columns
// and for the backward pass by its rows, in panels of 64 of them, with 1024 elements beyond each.
TEST(StageCost, WeightsArePackedBothWays) {
  const StageCost cost(work_of(config_of("gpt2", 1, 96), 2), 1, 2, 128);
  EXPECT_EQ(cost.packed().value(), 2 * 4 * (384 * 96 + 128 * 384 + 2 * 1024));
}

TEST(StageCost, ChunksAddUp) {
  const StageWork work = work_of(config_of("llama", 2, 128), 2);
  const StageCost cost(work, 1, 4, 128);
  const auto sum = [&](auto part) { return part(0, 128).value() + part(128, 256).value() + part(256, 320).value(); };
  const auto expect = [&](double parts, Flops whole) { EXPECT_NEAR(parts, whole.value(), 1e-9 * whole.value()); };
  expect(sum([&](auto a, auto b) { return cost.forward(a, b); }), cost.forward(0, 320));
  expect(sum([&](auto a, auto b) { return cost.recompute(a, b); }), cost.recompute(0, 320));
  expect(sum([&](auto a, auto b) { return cost.backward(a, b); }), cost.backward(0, 320));
}

// Slices that follow each other do the weight gradient once, and no slice does less than its share.
TEST(StageCost, SlicesOfAGradientAddUp) {
  const StageWork work = work_of(config_of("gpt2", 2, 128), 2);
  const StageCost cost(work, 0, 3, 128);
  double elements = 0, beside = 0, at = 0;
  for (const double to : {0.2, 0.55, 0.6, 1.0}) {
    const OwnerCost part = owner_cost(work, cost, slices_between(work, cost, at, to), 128);
    elements += part.elements;
    beside += part.beside.value();
    EXPECT_GE(part.alone.value(), part.beside.value());
    at = to;
  }
  const OwnerCost whole = owner_cost(work, cost, slices_between(work, cost, 0, 1), 128);
  EXPECT_NEAR(elements, cost.gradient_elements(), 1e-6 * elements);
  EXPECT_NEAR(beside, whole.beside.value(), 1e-9 * beside);
}

}  // namespace
}  // namespace cleave::plan
