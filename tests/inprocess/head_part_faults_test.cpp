// A head in parts while devices come and go, lie, and messages are damaged: the bits of training in tiles.
#include <gtest/gtest.h>

#include <iterator>
#include <set>

#include "churn_schedule.hpp"
#include "cleave/base/sanitizer.hpp"
#include "faulty_run.hpp"
#include "head_in_parts.hpp"

namespace cleave::testing_run {
namespace {

#ifdef CLEAVE_ADDRESS_SANITIZER
constexpr std::uint64_t kHeadSchedules = 2;  // several times as slow, and for memory alone
constexpr DType kHeadWires[] = {DType::f16};
constexpr std::size_t kHeadLiars = 2;
constexpr fleet::InjectedFaultKind kHeadLies[] = {fleet::InjectedFaultKind::bit};
#else
constexpr std::uint64_t kHeadSchedules = 10;
constexpr DType kHeadWires[] = {DType::f32, DType::f16};
constexpr std::size_t kHeadLiars = 14;
constexpr fleet::InjectedFaultKind kHeadLies[] = {fleet::InjectedFaultKind::bit, fleet::InjectedFaultKind::zero};
#endif

TEST(HeadPartFaults, DevicesThatComeAndGoLeaveNoTrace) {
  for (const DType wire : kHeadWires) {
    Setting plain = with_vocabulary();
    plain.wire = wire;
    const std::uint64_t wanted = train(plain).hash;
    SCOPED_TRACE(name_of(wire));
    expect_same_bits_while_devices_come_and_go(in_parts(plain, unlike_devices(14), 2), kHeadSchedules, wanted);
  }
}

// Every device that has a part in turn.
TEST(HeadPartFaults, LiarsAreFoundOutAndLeaveNoTrace) {
  const Setting plain = with_vocabulary();
  const std::uint64_t wanted = train(plain).hash;
  Setting s = in_parts(plain, alike_devices(14), 2);
  const std::optional<plan::StagePlan> plan = plan_of(s);
  std::set<std::int64_t> liars;
  for (std::size_t stage = plan->stages.size() - 2; stage < plan->stages.size(); ++stage) {
    for (const plan::StageReplica& replica : plan->stages[stage].replicas) liars.insert(replica.device.value);
  }
  ASSERT_GE(liars.size(), 2U);
  s.verification = {.mode = server::VerifyMode::audit, .fraction = 1.0, .seed = 11};
  if (liars.size() > kHeadLiars) liars.erase(std::next(liars.begin(), kHeadLiars), liars.end());
  for (const std::int64_t device : liars) {
    for (const fleet::InjectedFaultKind kind : kHeadLies) {
      s.churn = {{Seconds(0), DeviceId(device), fleet::ChurnKind::faulty, 1.0, kind}};
      const Outcome outcome = train(s);
      EXPECT_EQ(outcome.hash, wanted) << device;
      EXPECT_EQ(outcome.distrusted, std::vector{DeviceId(device)});
    }
  }
}

class HeadPartsWireFaults : public ::testing::TestWithParam<MessageFault> {};

TEST_P(HeadPartsWireFaults, TheRunEndsWithTheSameBits) {
  const Setting plain = with_vocabulary();
  expect_same_bits_under(GetParam(), in_parts(plain, unlike_devices(10), 2), train(plain).hash);
}

INSTANTIATE_TEST_SUITE_P(Kinds, HeadPartsWireFaults, ::testing::ValuesIn(all_message_faults({40})),
                         [](const auto& of) { return name_of(of.param); });

}  // namespace
}  // namespace cleave::testing_run
