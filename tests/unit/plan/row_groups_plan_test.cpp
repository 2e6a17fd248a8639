// Row groups planned together: every group is filled exactly by tiles whose columns are the same in all of them, and
// columns and tasklets together stay within the memory.
#include <numeric>

#include "fleets.hpp"

namespace cleave::plan {
namespace {

PlanOptions unlimited() {
  PlanOptions options;
  options.server = {.nic_out = fleet::kUnlimitedRate, .nic_in = fleet::kUnlimitedRate};
  return options;
}

TEST(RowGroupsPlan, GroupsAreFilledAndColumnsAreTheSame) {
  const std::vector<std::int64_t> rows = {4096, 3072, 4096};
  for (const GemmShape shape : {GemmShape{0, 5120, 5120}, {0, 2048, 20480}, {0, 999, 700}}) {
    const Work work = gemm_work(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}), shape.n, shape.k);
    const std::vector<DeviceState> devices = cleave_fleet(24);
    const RowGroupsPlan plan = plan_row_groups(work, rows, devices, unlimited());
    ASSERT_EQ(plan.groups.size(), 2U);
    EXPECT_FALSE(plan.columns.empty());
    for (const auto& [size, group] : plan.groups) {
      Work part = work;
      part.gemm.m = size;
      TaskletPlan whole;
      whole.box = {0, size, 0, shape.n, 0, shape.k};
      expect_legal(part, {whole}, group.tasklets, devices);
      for (const TaskletPlan& tasklet : group.tasklets) {
        if (!tasklet.columns_kept) continue;
        const auto brings = [&](const TaskletPlan& columns) {
          const GemmBox &a = columns.box, &b = tasklet.box;
          return columns.device == tasklet.device && a.n0 == b.n0 && a.n1 == b.n1 && a.k0 == b.k0 && a.k1 == b.k1;
        };
        EXPECT_EQ(std::ranges::count_if(plan.columns, brings), 1);
      }
    }
  }
}

TEST(RowGroupsPlan, WhatIsKeptLeavesTheTaskletsTheirMemory) {
  const std::vector<std::int64_t> rows = {8192, 8192};
  const Work work = gemm_work(16384, 5120, 5120);
  std::vector<DeviceState> devices = cleave_fleet(16);
  for (DeviceState& device : devices) device.profile.memory = Bytes(48 << 20);
  const RowGroupsPlan plan = plan_row_groups(work, rows, devices, unlimited());
  std::map<DeviceId, Bytes> kept;
  for (const TaskletPlan& columns : plan.columns) {
    EXPECT_EQ(columns.box.m(), 0);
    EXPECT_EQ(columns.bytes_up.value(), 0);
    kept[columns.device] += columns.resident;
  }
  const Bytes room = room_for_columns(Bytes(48 << 20));
  for (const auto& [device, bytes] : kept) EXPECT_LE(bytes + bytes, room);
  for (const TaskletPlan& tasklet : plan.groups.at(8192).tasklets) {
    EXPECT_LE(tasklet.resident, Bytes(48 << 20) - room);
  }
}

// Columns travel once: two groups are sent hardly more than one operation with the rows of both.
TEST(RowGroupsPlan, MovesWhatOneOperationMoves) {
  const std::vector<std::int64_t> rows = {16384, 16384};
  const Work work = gemm_work(32768, 5120, 5120);
  const std::vector<DeviceState> devices = cleave_fleet(64);
  const RowGroupsPlan plan = plan_row_groups(work, rows, devices, unlimited());
  Bytes down{0};
  for (const TaskletPlan& columns : plan.columns) down += columns.bytes_down;
  down += plan.groups.at(16384).bytes_down + plan.groups.at(16384).bytes_down;
  const OperationPlan whole = plan_operation(work, devices, unlimited());
  EXPECT_LT(down.value(), 1.02 * static_cast<double>(whole.bytes_down.value()));
  Work half = work;
  half.gemm.m = 16384;
  EXPECT_LT(down.value(), 0.8 * 2 * static_cast<double>(plan_operation(half, devices, unlimited()).bytes_down.value()));
  EXPECT_GE(plan.busy, whole.busy * 0.99);
}

TEST(RowGroupsPlan, ATaskletCanBringItsOwnColumns) {
  const std::vector<std::int64_t> rows = {512, 512};
  Work work = gemm_work(1024, 2048, 2048);
  const std::vector<DeviceState> devices = cleave_fleet(8);
  const TaskletPlan piece = plan_row_groups(work, rows, devices, unlimited()).groups.at(512).tasklets.front();
  ASSERT_TRUE(piece.columns_kept);
  work.gemm.m = 512;
  const std::vector<TaskletPlan> own = with_own_columns(work, piece, devices, unlimited());
  expect_legal(work, {piece}, own, devices);
  for (const TaskletPlan& part : own) EXPECT_FALSE(part.columns_kept);
}

}  // namespace
}  // namespace cleave::plan
