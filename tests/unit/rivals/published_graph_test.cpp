// The published decomposition: what it keeps of a step, what it cuts, and closed forms of instances.
#include "published_graph.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "cleave/model/family.hpp"
#include "cleave/plan/bound.hpp"
#include "cleave/plan/cost.hpp"
#include "studies.hpp"

namespace cleave::rivals {
namespace {

constexpr std::int64_t kBatch = 6, kSeq = 32, kWidth = 64, kHeads = 4, kHeadDim = 16, kLayers = 2;

model::ModelConfig opt_model() {
  model::ModelConfig config = small_model(kLayers);
  config.family = "opt";
  return config;
}

model::StepGraph build(const model::ModelConfig& config) {
  return model::build_step(config, {.kind = model::StepKind::train, .batch = kBatch, .clip = true, .freeze = {}});
}

std::vector<plan::DeviceState> states_of(const std::vector<fleet::DeviceProfile>& devices) {
  std::vector<plan::DeviceState> states;
  for (const fleet::DeviceProfile& device : devices) states.push_back({device, {}, {}, {}});
  return states;
}

// Per layer: q, k, v, o in three phases, two products of attention forward and four backward; GEMMs of the MLP and the
// head stay whole.
TEST(PublishedGraph, HasTheProductsThatItsAuthorsList) {
  const model::StepGraph graph = publish(build(opt_model()));
  std::int64_t projections = 0, square = 0, flat = 0;
  for (const model::Operation& op : graph.operations) {
    EXPECT_NE(op.kind, model::OpKind::attention_forward);
    EXPECT_NE(op.kind, model::OpKind::attention_backward);
    if (op.instances == 1) continue;
    if (op.instances == kBatch) {
      const bool weight = op.phase == model::Phase::weight_gradient;
      EXPECT_EQ(op.gemm, weight ? (GemmShape{kWidth, kWidth, kSeq}) : (GemmShape{kSeq, kWidth, kWidth})) << op.name;
      ++projections;
    } else {
      EXPECT_EQ(op.instances, kBatch * kHeads) << op.name;
      (op.gemm.k == kHeadDim ? square : flat) += 1;
      EXPECT_EQ(op.gemm, op.gemm.k == kHeadDim ? (GemmShape{kSeq, kSeq, kHeadDim}) : (GemmShape{kSeq, kHeadDim, kSeq}))
          << op.name;
    }
  }
  EXPECT_EQ(projections, 4 * 3 * kLayers);
  EXPECT_EQ(square, 2 * kLayers);
  EXPECT_EQ(flat, 4 * kLayers);
}

// Linear layers keep their FLOP; attention has all T x T scores, and none of them twice.
TEST(PublishedGraph, KeepsTheWork) {
  for (const char* family : {"opt", "gpt2", "llama"}) {
    model::ModelConfig config = small_model(kLayers);
    config.family = family;
    const model::StepGraph merged = build(config), published = publish(merged);
    double linear = 0, expected = 0;
    for (const model::Operation& op : merged.operations) {
      if (op.kind == model::OpKind::gemm) linear += model::flops_of(op).value();
    }
    for (const model::Operation& op : published.operations) {
      if (op.kind == model::OpKind::gemm) expected += model::flops_of(op).value();
    }
    const double attention = 6.0 * kLayers * kBatch * kHeads * 2 * kSeq * kSeq * kHeadDim;
    EXPECT_NEAR(expected, linear + attention, 1e-6 * expected) << family;
  }
}

// Ids are indices, nothing waits for what comes later, names are unique, and an operation that waited for attention
// waits for all of its products.
TEST(PublishedGraph, KeepsTheOrder) {
  const model::StepGraph graph = publish(build(opt_model()));
  std::set<std::string> names;
  for (std::size_t i = 0; i < graph.operations.size(); ++i) {
    const model::Operation& op = graph.operations[i];
    EXPECT_EQ(op.id.value, static_cast<std::int64_t>(i));
    EXPECT_TRUE(names.insert(op.name).second) << op.name;
    for (const OpId before : op.after) EXPECT_LT(before.value, op.id.value) << op.name;
  }
  const auto named = [&](const std::string& name) {
    const auto found = std::find_if(graph.operations.begin(), graph.operations.end(),
                                    [&](const model::Operation& op) { return op.name == name; });
    EXPECT_NE(found, graph.operations.end()) << name;
    return *found;
  };
  const auto waits = [](const model::Operation& op, const model::Operation& other) {
    return std::find(op.after.begin(), op.after.end(), other.id) != op.after.end();
  };
  EXPECT_TRUE(waits(named("layers.0.self_attn.forward.values"), named("layers.0.self_attn.forward.scores")));
  EXPECT_TRUE(waits(named("layers.0.self_attn.out_proj.forward"), named("layers.0.self_attn.forward.values")));
  EXPECT_TRUE(
      waits(named("layers.0.self_attn.k_proj.input_gradient"), named("layers.0.self_attn.backward.key_gradient")));
  EXPECT_TRUE(
      waits(named("layers.0.self_attn.v_proj.weight_gradient"), named("layers.0.self_attn.backward.value_gradient")));
}

// On one device: bytes, FLOP and the time of the busiest resource grow with the instances; memory holds two.
TEST(Instances, CostAsOftenAsThereAreInstances) {
  const std::vector<plan::DeviceState> device = states_of(equal_devices(1, 1e9, 1e6));
  plan::Work one;
  one.gemm = {40, 24, 16};
  one.wire = DType::f16;
  plan::PlanOptions published;
  published.partition = plan::Partition::paper;
  plan::Work many = one;
  many.instances = 50;
  const plan::OperationPlan single = plan::plan_operation(one, device, published);
  const plan::OperationPlan stream = plan::plan_operation(many, device, published);
  ASSERT_EQ(stream.tasklets.size(), 1U);
  const plan::TaskletPlan& tasklet = stream.tasklets[0];
  const double header = plan::kMessageHeader.value();
  EXPECT_EQ(tasklet.bytes_down.value(), 50 * (40 + 24) * 16 * 2 + tasklet.panels * plan::kMessageHeader.value());
  EXPECT_EQ(tasklet.bytes_up.value(), 50 * 40 * 24 * 2 + tasklet.panels * plan::kMessageHeader.value());
  EXPECT_EQ(plan::resident_bytes(many, tasklet).value(), 2 * ((40 + 24) * 16 * 2 + 40 * 24 * 2));
  const double down_s = 50 * (40 + 24) * 16 * 2 / 1e6;
  EXPECT_NEAR(stream.busy.value(), down_s, static_cast<double>(tasklet.panels) * header / 1e6 + 1e-12);
  EXPECT_LT(stream.time.value(), 50 * single.time.value());  // transfers of one under the product of another
  EXPECT_LE(stream.lower_bound, stream.time);
  EXPECT_GE(stream.lower_bound.value(), down_s * (1 - 1e-4));
}

// Instances dealt out whole: two equal devices take half of one device's time.
TEST(PublishedSums, DealtOutWholeHasItsClosedForm) {
  model::StepGraph graph;
  model::Operation op;
  op.id = OpId(0);
  op.gemm = {40, 24, 16};
  op.instances = 10;
  graph.operations.push_back(op);
  sched::SchedulerOptions options;
  options.plan.partition = plan::Partition::paper;
  options.wire = DType::f16;
  const double down_s = (40 + 24) * 16 * 2 / 1e6, up_s = 40 * 24 * 2 / 1e6;
  const auto devices = states_of(equal_devices(2, 1e9, 1e6));
  const PublishedSums sums = sum_operations(graph, devices, options);
  EXPECT_NEAR(sums.whole.value(), 10.0 / 2 * std::max(down_s, up_s), 1e-12);
  EXPECT_GT(sums.cut, sums.whole);  // cut in two, the shared strip is sent twice
}

}  // namespace
}  // namespace cleave::rivals
