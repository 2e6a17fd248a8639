// Who witnesses, as a device's work in hand comes and goes: what is answered, given up or released counts no more.
#include "cleave/sched/quorum_fleet.hpp"

#include <vector>

#include "cleave/plan/cost.hpp"
#include "graphs.hpp"

namespace cleave::sched {
namespace {

constexpr std::int64_t kMany = 300;
constexpr GemmBox kBlock{0, 100, 0, 60, 0, 500};
constexpr DeviceId kQuick(0), kSlow(1);
constexpr std::int64_t kFirst = 2, kDevices = 6;  // those from here on compute blocks

// Four devices of one owner compute blocks, so that the two others witness them. One of these is nearly twice as quick,
// and so is drawn nearly twice as often: of 2.9 witnesses 1.9 are its.
std::vector<fleet::DeviceProfile> all_devices() {
  std::vector<fleet::DeviceProfile> devices{device(0, 1e9, 1e9, 1e9, 0, 500'000), device(1, 1e9 / 1.9, 1e9, 1e9)};
  for (std::int64_t id = kFirst; id < kDevices; ++id) {
    devices.push_back(device(id, 1e9, 1e9, 1e9));
    devices.back().owner = "somebody";
  }
  return devices;
}

class QuorumFleetTest : public ::testing::Test {
 protected:
  QuorumFleetTest()
      : behind_(all_devices(), wide_server(), DType::f32),
        quorum_(behind_, {.fraction = 1, .plan = {.server = wide_server()}, .wire = DType::f32}) {
    quorum_.begin_step(graph_);
  }

  void submit() {
    Tasklet tasklet{.id = TaskletId(next_++), .op = OpId(0), .piece = {}};
    tasklet.piece.box = kBlock;
    const plan::DeviceState on{
        all_devices()[static_cast<std::size_t>(kFirst + next_ % (kDevices - kFirst))], {}, {}, {}};
    plan::estimate_cost(plan::work_of(graph_.operations[0], DType::f32), tasklet.piece, on, {.server = wide_server()});
    quorum_.submit(tasklet);
  }
  // Until nothing more happens.
  void settle() {
    while (quorum_.next_event(quorum_.now() + Seconds(1000)).kind != EventKind::timeout) {}
  }
  [[nodiscard]] std::int64_t witnessed(DeviceId device) {
    return behind_.usage()[static_cast<std::size_t>(device.value)].streams;
  }
  // Of blocks that come one after another, the share that the quick device witnesses.
  double share_of_quick() {
    const std::int64_t quick = witnessed(kQuick), slow = witnessed(kSlow);
    for (std::int64_t i = 0; i < kMany; ++i) {
      submit();
      settle();
    }
    EXPECT_EQ(witnessed(kQuick) + witnessed(kSlow), quick + slow + kMany);
    return static_cast<double>(witnessed(kQuick) - quick) / kMany;
  }
  static constexpr double kShare = 1.9 / 2.9, kOff = 0.08;  // three standard deviations of 300 draws

  const model::StepGraph graph_ = graph_of({gemm(0, {100, 60, 500})});
  SimulatedFleet behind_;
  QuorumFleet quorum_;
  std::int64_t next_ = 0;
};

TEST_F(QuorumFleetTest, WhatIsAnsweredIsInHandNoMore) { EXPECT_NEAR(share_of_quick(), kShare, kOff); }

// The quick device leaves with many witnesses in hand and comes back with none.
TEST_F(QuorumFleetTest, WhatIsAskedOfOthersIsInHandNoMore) {
  for (std::int64_t i = 0; i < kMany; ++i) submit();
  for (std::int64_t done = 0; done < kMany; ++done) ASSERT_EQ(quorum_.next_event(Seconds(1e9)).kind, EventKind::done);
  EXPECT_LT(witnessed(kQuick) + witnessed(kSlow), kMany - 50);
  behind_.remove_device(kQuick);
  settle();
  behind_.return_device(kQuick);
  settle();
  EXPECT_NEAR(share_of_quick(), kShare, kOff);
}

// Beside columns that it keeps for other tasklets the quick device has no room for a block; when they are released, it
// has.
TEST_F(QuorumFleetTest, ColumnsThatAreReleasedLeaveRoom) {
  Tasklet columns{.id = TaskletId(next_++), .op = OpId(0), .piece = {}};
  columns.columns = columns.id;
  columns.piece.device = kQuick;
  columns.piece.box = {0, 0, 0, 60, 0, 500};
  columns.piece.resident = Bytes(400'000);
  quorum_.submit(columns);
  EXPECT_EQ(share_of_quick(), 0);
  quorum_.release(columns.id, kQuick);
  EXPECT_NEAR(share_of_quick(), kShare, kOff);
}

}  // namespace
}  // namespace cleave::sched
