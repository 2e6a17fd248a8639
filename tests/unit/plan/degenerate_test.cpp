// Requests at the edge of sense end in a legal plan or a clear error, and soon.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cleave/base/error.hpp"
#include "cleave/plan/bound.hpp"
#include "fleets.hpp"

namespace cleave::plan {
namespace {

void expect_finite_plan(const Work& work, const std::vector<DeviceState>& devices, const PlanOptions& options = {}) {
  const OperationPlan plan = plan_operation(work, devices, options);
  expect_legal(work, {whole_piece(work)}, plan.tasklets, devices);
  EXPECT_GT(plan.time.value(), 0);
  EXPECT_GE(plan.time.value(), plan.lower_bound.value() * (1 - 1e-4));
  EXPECT_TRUE(std::isfinite(plan.time.value()));
}

TEST(Degenerate, ExtentsOfOne) {
  for (const std::int64_t m : {1, 1000}) {
    for (const std::int64_t n : {1, 1000}) {
      for (const std::int64_t k : {1, 1000, 100000}) {
        for (const std::int64_t count : {1, 3, 300}) {
          SCOPED_TRACE(testing::Message() << m << "x" << n << "x" << k << " on " << count);
          expect_finite_plan(gemm_work(m, n, k), cleave_fleet(count));
        }
      }
    }
  }
}

// Rates of zero, NaN or less are those of a device that does not work; the others do it all.
TEST(Degenerate, DevicesThatDoNotWork) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double rate : {0.0, -1.0, nan}) {
    std::vector<DeviceState> devices = cleave_fleet(5);
    devices[0].profile.compute = FlopsPerSecond(rate);
    devices[1].profile.downlink = BytesPerSecond(rate);
    devices[2].profile.uplink = BytesPerSecond(rate);
    const OperationPlan plan = plan_operation(gemm_work(300, 400, 2000), devices, {});
    for (const TaskletPlan& t : plan.tasklets) EXPECT_GE(t.device.value, 3);
    devices.resize(3);
    EXPECT_THROW(static_cast<void>(plan_operation(gemm_work(300, 400, 2000), devices, {})), InputError);
  }
}

TEST(Degenerate, RatesFarApart) {
  std::vector<DeviceState> devices;
  for (int i = 0; i < 12; ++i) {
    const double rate = std::pow(10.0, i);
    devices.push_back(device(i, 1e3 * rate, 1'000'000'000, rate, rate, i % 2 == 0 ? 0.0 : 10.0));
  }
  expect_finite_plan(gemm_work(2000, 3000, 10000), devices);
  devices.push_back(
      device(12, std::numeric_limits<double>::infinity(), 1'000'000'000, 1e9, std::numeric_limits<double>::infinity()));
  expect_finite_plan(gemm_work(2000, 3000, 10000), devices);
}

// Memory for exactly one element of the result over one K block: one tasklet for each.
TEST(Degenerate, MemoryForOneElement) {
  const Work work = gemm_work(20, 30, 1536);
  TaskletPlan one;
  one.box = {0, 1, 0, 1, 0, kBlockK};
  const std::int64_t least = resident_bytes(work, one).value();
  std::vector<DeviceState> devices;
  for (int i = 0; i < 3; ++i) devices.push_back(device(i, 1e12, least, 1e6, 1e6));
  expect_finite_plan(work, devices);
  for (DeviceState& d : devices) d.profile.memory = Bytes(least - 1);
  EXPECT_THROW(static_cast<void>(plan_operation(work, devices, {})), InputError);
}

// Many more devices than the work needs, unlike and alike.
TEST(Degenerate, VeryManyDevices) {
  for (const GemmShape shape : {GemmShape{1, 1, 1}, GemmShape{512, 384, 128}, GemmShape{8192, 8192, 8192}}) {
    const Work work = gemm_work(shape.m, shape.n, shape.k);
    expect_finite_plan(work, cleave_fleet(30000));
    std::vector<DeviceState> alike;
    for (int i = 0; i < 30000; ++i) alike.push_back(device(i, 5e12, 1'000'000'000, 5e7, 1e7));
    expect_finite_plan(work, alike);
  }
}

// Devices that are busy for long are waited for only where nobody else can do it.
TEST(Degenerate, LoadedDevices) {
  std::vector<DeviceState> devices = cleave_fleet(4);
  for (DeviceState& d : devices) d.down_busy = d.compute_busy = d.up_busy = Seconds(1e7);
  expect_finite_plan(gemm_work(500, 500, 500), devices);
}

// A bound from a sample of the devices is a bound; less memory never lowers it.
TEST(Degenerate, BoundOfLargeFleets) {
  for (const std::int64_t count : {300, 1000}) {
    for (const GemmShape shape : {GemmShape{4096, 4096, 4096}, GemmShape{2048, 8192, 131072}}) {
      const Work work = gemm_work(shape.m, shape.n, shape.k);
      std::vector<DeviceState> devices = cleave_fleet(count);
      PlanOptions unlimited;
      unlimited.server.nic_out = unlimited.server.nic_in = fleet::kUnlimitedRate;
      expect_finite_plan(work, devices);
      const double roomy = lower_bound(work, devices, unlimited).value();
      double last = roomy;
      for (const std::int64_t memory : {100'000'000, 10'000'000, 1'000'000, 100'000}) {
        for (DeviceState& d : devices) d.profile.memory = Bytes(memory);
        const double bound = lower_bound(work, devices, unlimited).value();
        EXPECT_GE(bound, last * (1 - 1e-4)) << memory;
        last = bound;
      }
      EXPECT_GT(last, roomy);
    }
  }
}

}  // namespace
}  // namespace cleave::plan
