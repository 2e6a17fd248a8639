// What holds for every plan, over generated fleets and shapes: tiles disjoint and covering, memory respected, faster
// devices never make it slower, names mean nothing, and the same input gives the same plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cleave/plan/bound.hpp"
#include "fleets.hpp"

namespace cleave::plan {
namespace {

struct Generated {
  Work work;
  std::vector<DeviceState> devices;
  PlanOptions options;
};

// Case `index` of a fixed sequence: shapes and rates over several orders of magnitude.
Generated generate(std::uint32_t index) {
  const Random random(2024, Purpose::test, index);
  std::uint64_t next = 0;
  const auto spread = [&](double low, double high) { return low * std::pow(high / low, random.uniform(next++)); };
  const auto whole = [&](double low, double high) { return static_cast<std::int64_t>(spread(low, high)); };
  Generated g;
  g.work = gemm_work(whole(1, 20000), whole(1, 20000), whole(1, 50000),
                     random.below(next++, 2) == 0 ? DType::f32 : DType::f16);
  const std::int64_t count = whole(1, 150);
  for (std::int64_t i = 0; i < count; ++i) {
    g.devices.push_back(device(i, spread(1e11, 2e13), whole(1e6, 4e9), spread(1e6, 5e8), spread(1e6, 1e8),
                               random.below(next++, 3) == 0 ? spread(1e-4, 0.1) : 0.0));
  }
  if (random.below(next++, 2) == 0) g.options.server.nic_out = g.options.server.nic_in = fleet::kUnlimitedRate;
  return g;
}

bool same(const OperationPlan& a, const OperationPlan& b) {
  if (a.tasklets.size() != b.tasklets.size() || a.time != b.time || a.busy != b.busy) return false;
  for (std::size_t i = 0; i < a.tasklets.size(); ++i) {
    const TaskletPlan &x = a.tasklets[i], &y = b.tasklets[i];
    if (x.device != y.device || x.box != y.box || x.order != y.order || x.panels != y.panels || x.time != y.time) {
      return false;
    }
  }
  return true;
}

TEST(Properties, LegalAndAboveTheBound) {
  for (std::uint32_t i = 0; i < 150; ++i) {
    SCOPED_TRACE(i);
    const Generated g = generate(i);
    const OperationPlan plan = plan_operation(g.work, g.devices, g.options);
    expect_legal(g.work, {whole_piece(g.work)}, plan.tasklets, g.devices);
    EXPECT_GE(plan.time.value(), plan.lower_bound.value() * (1 - 1e-4));
  }
}

TEST(Properties, SameInputSamePlan) {
  for (std::uint32_t i = 0; i < 40; ++i) {
    const Generated g = generate(i);
    EXPECT_TRUE(same(plan_operation(g.work, g.devices, g.options), plan_operation(g.work, g.devices, g.options))) << i;
  }
}

TEST(Properties, OrderAndNamesOfDevicesMeanNothing) {
  for (std::uint32_t i = 0; i < 40; ++i) {
    SCOPED_TRACE(i);
    const Generated g = generate(i);
    std::vector<DeviceState> reversed(g.devices.rbegin(), g.devices.rend());
    const OperationPlan plan = plan_operation(g.work, g.devices, g.options);
    EXPECT_TRUE(same(plan, plan_operation(g.work, reversed, g.options)));
    const auto renamed = [&](std::int64_t id) { return std::ssize(g.devices) - 1 - id; };
    for (DeviceState& d : reversed) d.profile.id = DeviceId(renamed(d.profile.id.value));
    OperationPlan back = plan_operation(g.work, reversed, g.options);
    for (TaskletPlan& t : back.tasklets) t.device = DeviceId(renamed(t.device.value));
    EXPECT_TRUE(same(plan, back));
  }
}

// The bound is exactly monotone (to its precision); a plan, found by heuristics, nearly.
TEST(Properties, FasterDevicesAreNotSlower) {
  for (std::uint32_t i = 0; i < 60; ++i) {
    const Generated g = generate(i);
    const OperationPlan before = plan_operation(g.work, g.devices, g.options);
    for (int rate = 0; rate < 3; ++rate) {
      SCOPED_TRACE(testing::Message() << "case " << i << " rate " << rate);
      std::vector<DeviceState> faster = g.devices;
      for (DeviceState& d : faster) {
        if (rate == 0) d.profile.downlink = d.profile.downlink * 1.5;
        if (rate == 1) d.profile.compute = d.profile.compute * 1.5;
        if (rate == 2) d.profile.uplink = d.profile.uplink * 1.5;
      }
      const OperationPlan after = plan_operation(g.work, faster, g.options);
      EXPECT_LE(after.lower_bound.value(), before.lower_bound.value() * (1 + 1e-4));
    }
  }
}

TEST(Properties, AttentionOverUnlikeDevices) {
  for (const WorkKind kind : {WorkKind::attention_forward, WorkKind::attention_backward}) {
    const Work work = attention_work(kind, {.batch = 16, .seq = 256, .n_head = 16, .n_kv_head = 4, .head_dim = 64});
    const std::vector<DeviceState> devices = cleave_fleet(33);
    const OperationPlan plan = plan_operation(work, devices, {});
    expect_legal(work, {whole_piece(work)}, plan.tasklets, devices);
    EXPECT_LE(plan.busy.value(), 1.05 * plan.lower_bound.value());
  }
}

}  // namespace
}  // namespace cleave::plan
