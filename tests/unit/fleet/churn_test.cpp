// The churn generator: events in order, sessions and absences of the means that were asked for, and devices that do not
// depend on each other.
#include "cleave/fleet/churn.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace cleave::fleet {
namespace {

using Key = std::tuple<double, std::int64_t, ChurnKind, double>;

Key key_of(const ChurnEvent& event) { return {event.at.value(), event.device.value, event.kind, event.factor}; }

TEST(DrawChurn, NobodyLeavesWithoutSessions) { EXPECT_TRUE(draw_churn({}, 100, Seconds(1e6)).empty()); }

TEST(DrawChurn, DevicesLeaveAndJoinInTurnsBeforeTheHorizon) {
  const ChurnModel model{.mean_session = Seconds(300), .mean_absence = Seconds(100), .seed = 3};
  const Seconds horizon(40'000);
  const ChurnTrace trace = draw_churn(model, 200, horizon);
  std::map<DeviceId, Seconds> since;
  std::map<DeviceId, bool> away;
  std::map<DeviceId, double> session;           // a device's last
  double sessions = 0, absences = 0, both = 0;  // and of each absence times the session before it
  std::int64_t left = 0, joined = 0;
  Seconds before{0};
  for (const ChurnEvent& event : trace) {
    EXPECT_LE(before, event.at);
    EXPECT_LT(event.at, horizon);
    before = event.at;
    const double took = (event.at - since[event.device]).value();
    if (event.kind == ChurnKind::leave) {
      EXPECT_FALSE(away[event.device]);
      sessions += took;
      session[event.device] = took;
      ++left;
    } else {
      ASSERT_EQ(event.kind, ChurnKind::join);
      EXPECT_TRUE(away[event.device]);
      absences += took;
      both += took * session[event.device];
      ++joined;
    }
    away[event.device] = event.kind == ChurnKind::leave;
    since[event.device] = event.at;
  }
  // 200 devices for 100 cycles each. A mean of n exponential draws is off by 1/sqrt(n) of itself; those that the
  // horizon cuts off, the long ones, are not counted: 1 % of them.
  ASSERT_GT(left, 19'000);
  EXPECT_NEAR(sessions / static_cast<double>(left), 300, 300 * 0.03);
  EXPECT_NEAR(absences / static_cast<double>(joined), 100, 100 * 0.03);
  // How long somebody stays says nothing about how long he is away: were it the same draw, this would be twice as much.
  EXPECT_NEAR(both / static_cast<double>(joined), 300 * 100, 300 * 100 * 0.1);
}

TEST(DrawChurn, ADevicesEventsDependOnTheSeedAndItselfAlone) {
  const ChurnModel model{
      .mean_session = Seconds(100), .slow_fraction = 0.3, .faulty_fraction = 0.3, .faults = {}, .seed = 9};
  const auto events_of = [](const ChurnTrace& trace, std::int64_t devices) {
    std::vector<Key> events;
    for (const ChurnEvent& event : trace) {
      if (event.device.value < devices) events.push_back(key_of(event));
    }
    return events;
  };
  const ChurnTrace few = draw_churn(model, 10, Seconds(5000));
  EXPECT_EQ(events_of(few, 10), events_of(draw_churn(model, 50, Seconds(5000)), 10));
  ChurnModel other = model;
  other.seed = 10;
  EXPECT_NE(events_of(few, 10), events_of(draw_churn(other, 10, Seconds(5000)), 10));
}

TEST(DrawChurn, SharesOfSlowAndFaultyDevices) {
  const ChurnModel model{.slow_fraction = 0.2,
                         .slow_factor = 0.25,
                         .faulty_fraction = 0.1,
                         .faults = {InjectedFaultKind::bias, 0.5},
                         .seed = 5};
  std::int64_t slow = 0, faulty = 0;
  for (const ChurnEvent& event : draw_churn(model, 10'000, Seconds(10))) {
    EXPECT_EQ(event.at, Seconds(0));
    if (event.kind == ChurnKind::slow) {
      ++slow;
      EXPECT_EQ(event.factor, 0.25);
    } else {
      ASSERT_EQ(event.kind, ChurnKind::faulty);
      ++faulty;
      EXPECT_EQ(event.factor, 0.5);
      EXPECT_EQ(event.fault, InjectedFaultKind::bias);
    }
  }
  EXPECT_NEAR(static_cast<double>(slow), 2000, 4 * std::sqrt(10'000 * 0.2 * 0.8));
  EXPECT_NEAR(static_cast<double>(faulty), 1000, 4 * std::sqrt(10'000 * 0.1 * 0.9));
}

}  // namespace
}  // namespace cleave::fleet
