// Who is asked for a copy of a block that is late.
#include "recovery/copies.hpp"

#include <array>
#include <map>
#include <vector>

#include "cleave/plan/cost.hpp"
#include "graphs.hpp"

namespace cleave::sched {
namespace {

constexpr double kSlow = 1e4, kQuick = 1e14;
constexpr Seconds kForever{1e9};

plan::Work pairs() {
  plan::Work work;
  work.kind = plan::WorkKind::attention_forward;
  work.attention = {.batch = 1, .seq = 64, .n_head = 8, .n_kv_head = 8, .head_dim = 32};
  return work;
}

plan::TaskletPlan one_pair(const plan::DeviceState& on) {
  plan::TaskletPlan piece;
  piece.pairs = {0, 1};
  plan::estimate_cost(pairs(), piece, on, options_of().plan);
  return piece;
}

// Two devices alike take turns, whichever of their resources a copy takes longest.
TEST(Copies, WhoHasTakenACopyIsBusyWithIt) {
  for (const auto& [compute, down, up] :
       {std::array{kSlow, kQuick, kQuick}, {kQuick, kSlow, kQuick}, {kQuick, kQuick, kSlow}}) {
    std::vector<plan::DeviceState> devices{{device(0, compute, down, up), {}, {}, {}},
                                           {device(1, compute, down, up), {}, {}, {}}};
    const plan::TaskletPlan piece = one_pair(devices[0]);
    std::map<DeviceId, int> count;
    for (int i = 0; i < 4; ++i) {
      const auto copy = place_copy(pairs(), piece, devices, {}, kForever, options_of().plan);
      ASSERT_TRUE(copy);
      ++count[copy->device];
    }
    EXPECT_EQ(count[DeviceId(0)], 2) << compute << " " << down << " " << up;
  }
}

// Neither who is late himself, nor who has no room, nor who would take too long.
TEST(Copies, AreAskedOfWhoCanHelp) {
  const auto on = [](const fleet::DeviceProfile& profile) { return plan::DeviceState{profile, {}, {}, {}}; };
  std::vector<plan::DeviceState> devices{on(device(0, kQuick, kQuick, kQuick)),
                                         on(device(1, kQuick, kQuick, kQuick, 0, 1000)),
                                         on(device(2, kQuick, kSlow, kQuick))};
  const plan::TaskletPlan piece = one_pair(devices[0]);
  ASSERT_GT(piece.resident, devices[1].profile.memory);
  const auto copy = [&](Seconds at_most) {
    return place_copy(pairs(), piece, devices, {DeviceId(0)}, at_most, options_of().plan);
  };
  EXPECT_FALSE(copy(Seconds(static_cast<double>(piece.bytes_down.value()) / kSlow * 0.9)));
  const auto found = copy(kForever);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->device, DeviceId(2));
}

}  // namespace
}  // namespace cleave::sched
