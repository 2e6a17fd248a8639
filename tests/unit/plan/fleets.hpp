// Fleets and checks that the plan tests share.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "cleave/base/random.hpp"
#include "cleave/plan/cost.hpp"
#include "cleave/plan/plan.hpp"

namespace cleave::plan {

inline Work gemm_work(std::int64_t m, std::int64_t n, std::int64_t k, DType wire = DType::f16) {
  Work work;
  work.gemm = {m, n, k};
  work.wire = wire;
  return work;
}

inline Work attention_work(WorkKind kind, AttentionShape shape, DType wire = DType::f16) {
  Work work;
  work.kind = kind;
  work.attention = shape;
  work.wire = wire;
  return work;
}

inline DeviceState device(std::int64_t id, double compute, std::int64_t memory, double down, double up,
                          double latency = 0) {
  DeviceState state;
  state.profile.id = DeviceId(id);
  state.profile.name = "test";
  state.profile.compute = FlopsPerSecond(compute);
  state.profile.memory = Bytes(memory);
  state.profile.downlink = BytesPerSecond(down);
  state.profile.uplink = BytesPerSecond(up);
  state.profile.latency = Seconds(latency);
  return state;
}

/// Whose interface has this rate each way.
inline fleet::ServerProfile server_of(double bytes_per_second) {
  fleet::ServerProfile server;
  server.nic_out = server.nic_in = BytesPerSecond(bytes_per_second);
  return server;
}

inline std::vector<DeviceState> fleet_of(const std::vector<fleet::DeviceGroup>& groups, std::uint64_t seed = 42) {
  std::vector<DeviceState> states;
  for (const fleet::DeviceProfile& profile : fleet::draw_devices(groups, seed)) {
    DeviceState state;
    state.profile = profile;
    states.push_back(state);
  }
  return states;
}

/// The published evaluation's fleet.
inline std::vector<DeviceState> cleave_fleet(std::int64_t count, std::uint64_t seed = 42) {
  return fleet_of({{.name = "edge",
                    .count = count,
                    .compute_flops = {5e12, 7e12},
                    .memory_bytes = {1e9, 3e9},
                    .downlink_bytes = {10e6, 100e6},
                    .uplink_bytes = {5e6, 10e6},
                    .latency_s = {0, 0}}},
                  seed);
}

/// Fails unless tasklets are disjoint, fill the given pieces exactly, lie at K blocks, fit memory and message limit,
/// and carry the costs that the cost model gives them. `pieces` is one whole work, or what was lost.
inline void expect_legal(const Work& work, const std::vector<TaskletPlan>& pieces,
                         const std::vector<TaskletPlan>& tasklets, const std::vector<DeviceState>& devices) {
  std::map<std::int64_t, const DeviceState*> by_id;
  for (const DeviceState& state : devices) by_id[state.profile.id.value] = &state;
  const auto volume = [&](const TaskletPlan& t) {
    return work.kind == WorkKind::gemm ? t.box.m() * t.box.n() * t.box.k() : t.pairs.count();
  };
  const auto overlap = [&](const TaskletPlan& a, const TaskletPlan& b) -> std::int64_t {
    if (work.kind != WorkKind::gemm) {
      return std::max<std::int64_t>(0, std::min(a.pairs.pair1, b.pairs.pair1) - std::max(a.pairs.pair0, b.pairs.pair0));
    }
    const auto side = [](std::int64_t a0, std::int64_t a1, std::int64_t b0, std::int64_t b1) {
      return std::max<std::int64_t>(0, std::min(a1, b1) - std::max(a0, b0));
    };
    return side(a.box.m0, a.box.m1, b.box.m0, b.box.m1) * side(a.box.n0, a.box.n1, b.box.n0, b.box.n1) *
           side(a.box.k0, a.box.k1, b.box.k0, b.box.k1);
  };
  std::int64_t needed = 0, had = 0;
  for (const TaskletPlan& piece : pieces) needed += volume(piece);
  for (std::size_t i = 0; i < tasklets.size(); ++i) {
    const TaskletPlan& t = tasklets[i];
    ASSERT_GT(volume(t), 0);
    had += volume(t);
    std::int64_t inside = 0;
    for (const TaskletPlan& piece : pieces) inside += overlap(t, piece);
    ASSERT_EQ(inside, volume(t)) << "tasklet " << i << " leaves the work";
    for (std::size_t j = 0; j < i && tasklets.size() < 3000; ++j) {
      ASSERT_EQ(overlap(t, tasklets[j]), 0) << "tasklets " << i << " and " << j;
    }
    if (work.kind == WorkKind::gemm) {
      ASSERT_EQ(t.box.k0 % kBlockK, 0);
      ASSERT_TRUE(t.box.k1 % kBlockK == 0 || t.box.k1 == work.gemm.k);
    }
    ASSERT_TRUE(by_id.contains(t.device.value));
    const DeviceState& at = *by_id[t.device.value];
    ASSERT_LE(t.resident, at.profile.memory);
    ASSERT_EQ(t.resident, resident_bytes(work, t));
    Bytes down{0}, up{0};
    Flops flops{0};
    for (const Panel& panel : panels_of(work, t)) {
      ASSERT_LT(panel.down, kMaxMessage);
      ASSERT_LT(panel.up, kMaxMessage);
      down += panel.down;
      up += panel.up;
      flops += panel.flops;
    }
    ASSERT_EQ(down, t.bytes_down);
    ASSERT_EQ(up, t.bytes_up);
    ASSERT_NEAR(flops / volume_of(work, t).flops, 1.0, 1e-12);
  }
  ASSERT_EQ(had, needed);
}

inline TaskletPlan whole_piece(const Work& work) {
  TaskletPlan piece;
  piece.box = {0, work.gemm.m, 0, work.gemm.n, 0, work.gemm.k};
  piece.pairs = {0, work.kind == WorkKind::gemm ? 0 : work.attention.pairs()};
  return piece;
}

}  // namespace cleave::plan
