// Bounds of layouts of which one thing takes nearly all the time, so that it can be told by hand.
#include "cleave/plan/stage_bound.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cleave/model/family.hpp"
#include "cleave/plan/stage_cost.hpp"

namespace cleave::plan {
namespace {

constexpr double kQuick = 1e15, kSlow = 1e4;  // bytes a second
const fleet::ServerProfile kQuickServer{fleet::kUnlimitedRate, fleet::kUnlimitedRate, FlopsPerSecond(1e13),
                                        BytesPerSecond(4e11)};

// Two layers and the head: five pieces.
model::StepGraph graph_of_two_layers(std::int64_t batch) {
  model::ModelConfig config;
  config.family = "opt";
  config.n_layer = 2;
  config.n_head = config.n_kv_head = 4;
  config.d_model = 64;
  config.d_ff = 256;
  config.vocab_size = 320;
  config.seq_len = config.max_pos = 512;
  return model::build_step(
      config,
      {.kind = model::StepKind::train, .batch = batch, .clip = true, .freeze = {}, .loss_rows = 0, .row_groups = 1});
}

StageWork two_layers(std::int64_t batch) { return stage_work_of(graph_of_two_layers(batch), DType::f16); }

struct Links {
  double down = kQuick, up = kQuick;
  double compute = 1e20, latency = 0;
};

// Devices from 0 on, as they are added, each with a part in the plan.
class Example {
 public:
  Example(std::int64_t batch, const std::vector<std::int64_t>& ends) : work_(two_layers(batch)) {
    plan_.chunk = kChunkTokens;
    std::int64_t first = 0;
    for (const std::int64_t end : ends) {
      Stage stage{.first = first, .end = end, .weights = cost(first, end).weights(), .replicas = {}};
      plan_.stages.push_back(std::move(stage));
      plan_.groups.push_back(1);
      first = end;
    }
  }

  DeviceId replica(std::size_t stage, Links links) {
    const DeviceId device = add(links);
    StageReplica replica;
    replica.device = device;
    plan_.stages[stage].replicas.push_back(replica);
    return device;
  }
  // Of the whole gradient, and a replica of the stage as well unless it is a device of its own.
  void owner(std::size_t stage, DeviceId device, bool replica) {
    GradientOwner of;
    of.device = device;
    of.stage = static_cast<std::int64_t>(stage);
    of.replica = replica;
    const StageCost stage_cost = cost_of(stage);
    of.slices = slices_between(work_, stage_cost, 0, 1);
    if (!replica) of.weights = owner_cost(work_, stage_cost, of.slices, plan_.chunk).weights;
    plan_.owners.push_back(of);
  }
  DeviceId add(Links links, std::int64_t memory = 1'000'000'000) {
    fleet::DeviceProfile device;
    device.id = DeviceId(static_cast<std::int32_t>(devices_.size()));
    device.compute = FlopsPerSecond(links.compute);
    device.memory = Bytes(memory);
    device.downlink = BytesPerSecond(links.down);
    device.uplink = BytesPerSecond(links.up);
    device.latency = Seconds(links.latency);
    devices_.push_back(device);
    return device.id;
  }

  [[nodiscard]] double bound(const ServerShare& share = {}) const {
    return stage_lower_bound(work_, plan_, devices_, kQuickServer, share).value();
  }
  [[nodiscard]] double floor(const fleet::ServerProfile& server = kQuickServer, const ServerShare& share = {}) const {
    return floor_of(work_, devices_, server, share).value();
  }
  // Bytes of all weights on the wire, and of those of the layers.
  [[nodiscard]] double parameters(bool with_head = true) const {
    std::int64_t elements = 0;
    for (const model::Piece& piece : work_.pieces)
      elements += with_head || piece.kind != model::PieceKind::head ? piece.weight_elements() : 0;
    return static_cast<double>(elements * size_of(work_.wire));
  }
  // FLOP of a chunk through a stage, there and back.
  [[nodiscard]] double chunk_flops(std::size_t stage) const {
    const StageCost of = cost_of(stage);
    return of.forward(0, kChunkTokens).value() + of.backward(0, kChunkTokens).value();
  }
  // Bytes of a sequence's rows of the residual stream.
  [[nodiscard]] double boundary() const { return static_cast<double>(cost_of(0).boundary(work_.seq).value()); }
  [[nodiscard]] double weights(std::size_t stage) const {
    return static_cast<double>(plan_.stages[stage].weights.value());
  }
  [[nodiscard]] double sums(std::size_t stage) const {
    return cost_of(stage).gradient_elements() * static_cast<double>(size_of(work_.wire));
  }

 private:
  [[nodiscard]] StageCost cost(std::int64_t first, std::int64_t end) const { return {work_, first, end, kChunkTokens}; }
  [[nodiscard]] StageCost cost_of(std::size_t stage) const {
    return cost(plan_.stages[stage].first, plan_.stages[stage].end);
  }

  StageWork work_;
  StagePlan plan_;
  std::vector<fleet::DeviceProfile> devices_;
};

// One sequence passes three slow replicas twice: one of them sends a whole sequence, though two thirds would be a
// replica's share.
TEST(StageBound, SequencesAreSentWhole) {
  Example example(1, {4, 5});
  for (int i = 0; i < 3; ++i) example.replica(0, {kQuick, kSlow});
  example.replica(1, {});
  EXPECT_NEAR(example.bound(), example.boundary() / kSlow, 0.01 * example.bound());
}

// Six passes: two of a slow replica take as long as four of one that is twice as quick.
TEST(StageBound, ReplicasSendAtTheirOwnRates) {
  Example example(3, {4, 5});
  example.replica(0, {kQuick, kSlow});
  example.replica(0, {kQuick, 2 * kSlow});
  example.replica(1, {});
  EXPECT_NEAR(example.bound(), 2 * example.boundary() / kSlow, 0.01 * example.bound());
}

// What the third stage sends last comes down through the second, and only then the first one's gradient is whole.
TEST(StageBound, GradientsWaitForTheSlowestStageAbove) {
  Example example(4, {1, 2, 4, 5});
  const DeviceId lowest = example.replica(0, {kQuick, kSlow});
  example.replica(1, {});
  example.replica(2, {kQuick, kSlow});
  example.replica(3, {});
  example.owner(0, lowest, true);
  // Eight passes at either slow stage; the first chunk is a quarter of a sequence, and so is the last one.
  const double passes = (8 + 0.25) * example.boundary() / kSlow, sums = example.sums(0) / kSlow;
  EXPECT_NEAR(example.bound(), passes + sums, 0.01 * example.bound());
}

// An owner is sent its stage's weights, and two boundaries of every sequence, whoever runs it.
TEST(StageBound, OwnersReadWhatTheySum) {
  Example example(4, {4, 5});
  const DeviceId reads = example.replica(0, {kSlow, kSlow});
  example.replica(0, {});
  example.replica(1, {});
  example.owner(0, reads, true);
  const double read = (example.weights(0) + 8 * example.boundary()) / kSlow;
  EXPECT_NEAR(example.bound(), read + example.sums(0) / kSlow, 0.01 * example.bound());
}

// A device that is no replica reads nothing before the first chunk has come to the top, for which the slow replicas of
// the stage have their weights first.
TEST(StageBound, OthersReadOnceChunksGoBack) {
  Example example(2, {4, 5});
  example.replica(0, {kSlow, kQuick});
  example.replica(1, {});
  const DeviceId helper = example.add({10 * kSlow, kQuick});
  example.owner(0, helper, false);
  // The replica: weights, X of two sequences and X and dY on their backward pass.
  const double first = (example.weights(0) + example.boundary() / 4) / kSlow;
  EXPECT_NEAR(example.bound(), first + 4 * example.boundary() / (10 * kSlow), 0.02 * example.bound());
}

// Two owners' slices on one device come down its link one after another, its uplink has sums of either to send last.
TEST(StageBound, ADeviceReadsForAllThatItOwns) {
  Example example(4, {2, 4, 5});
  example.replica(0, {});
  example.replica(1, {});
  example.replica(2, {});
  const DeviceId helper = example.add({kSlow, kQuick});
  example.owner(0, helper, false);
  example.owner(1, helper, false);
  Example one(4, {2, 4, 5});
  one.replica(0, {});
  one.replica(1, {});
  one.replica(2, {});
  one.owner(0, one.add({kSlow, kQuick}), false);
  EXPECT_GT(example.bound(), 1.9 * one.bound());
}

// Its uplink carries what passes the stage, and the sums.
TEST(StageBound, AReplicaSendsSumsBesideItsResults) {
  Example example(4, {4, 5});
  const DeviceId slow = example.replica(0, {kQuick, kSlow});
  example.replica(1, {});
  example.owner(0, slow, true);
  EXPECT_NEAR(example.bound(), (8 * example.boundary() + example.sums(0)) / kSlow, 0.01 * example.bound());
}

// The first chunk comes through the lowest stage, and the last one goes back through it: FLOP, and four latencies.
TEST(StageBound, AChunkPassesBothWays) {
  Example far(1, {4, 5}), slow(1, {4, 5});
  far.replica(0, {.compute = 1e20, .latency = 10});
  far.replica(1, {});
  EXPECT_NEAR(far.bound(), 4 * 10, 0.01 * far.bound());
  slow.replica(0, {.compute = 1e3, .latency = 0});
  slow.replica(1, {});
  EXPECT_NEAR(slow.bound(), slow.chunk_flops(0) / 1e3, 0.01 * slow.bound());
}

// What the server does before and after the devices is added.
TEST(StageBound, TheServersShareIsAdded) {
  Example example(1, {4, 5});
  example.replica(0, {kSlow, kSlow});
  example.replica(1, {});
  EXPECT_NEAR(example.bound({.before = Seconds(0), .after = Seconds(50)}) - example.bound(), 50, 1e-9);
  EXPECT_NEAR(example.floor(kQuickServer, {.before = Seconds(0), .after = Seconds(50)}) - example.floor(), 50, 1e-9);
}

TEST(Floor, IsAllFlopOnAllProcessors) {
  Example example(2, {4, 5});
  example.add({kQuick, kQuick, 1e3});
  example.add({kQuick, kQuick, 4e3});
  const double flops = model::device_flops(graph_of_two_layers(2)).value();
  EXPECT_NEAR(example.floor(), flops / 5e3, 1e-6 * example.floor());
}

// Devices that hold the whole model need send no rows.
TEST(Floor, IsEveryWeightDownAndEveryGradientUp) {
  Example example(2, {4, 5});
  example.add({1e4, 2e4});
  example.add({3e4, 5e4});
  EXPECT_NEAR(example.floor(), example.parameters() * (1 / 4e4 + 1 / 7e4), 1e-6 * example.floor());
  fleet::ServerProfile narrow = kQuickServer;
  narrow.nic_out = BytesPerSecond(2.5e4);
  EXPECT_NEAR(example.floor(narrow), example.parameters() * (1 / 2.5e4 + 1 / 7e4), 1e-6 * example.floor());
  narrow.nic_in = BytesPerSecond(1.5e4);
  EXPECT_NEAR(example.floor(narrow), example.parameters() * (1 / 2.5e4 + 1 / 1.5e4), 1e-6 * example.floor());
}

// Where memory is short, a byte up pays for sums of k products, k = 256 the widest side of a layer; rows that wait meet
// the weights of one downlink. Both passes apply every weight of a layer to every token, and gradients go up as well:
//   t (T d / w + sum of u k / w) = 2 T P + k (bytes of gradients) / w.
TEST(Floor, IsTheTimeThatRowsNeedToLeave) {
  constexpr double kWide = 256, kTokens = 4 * 512, kElement = 2;
  Example example(4, {4, 5});
  for (int i = 0; i < 3; ++i) example.add({1e4, 8e4}, 1000);
  const double layers = example.parameters(false) / kElement, gradients = example.parameters();
  const double expected =
      (2 * kTokens * layers + kWide * gradients / kElement) / (kTokens * 1e4 / kElement + 3 * 8e4 * kWide / kElement);
  EXPECT_NEAR(example.floor(), expected, 1e-6 * expected);
}

// Of two devices without memory one gets room for the whole model: it has all weights in time, and needs send no rows.
TEST(Floor, WhoHoldsTheWholeModelSendsNoRows) {
  const auto floor_with = [](std::int64_t memory, double& loading) {
    Example example(64, {4, 5});
    example.add({1e4, 1e4}, memory);
    example.add({1e4, 20e4}, 1000);
    loading = example.parameters() / 1e4;
    return example.floor();
  };
  double loading = 0;
  EXPECT_GT(floor_with(1000, loading), 1.2 * loading);
  EXPECT_NEAR(floor_with(1'000'000'000, loading), loading, 1e-6 * loading);
}

}  // namespace
}  // namespace cleave::plan
