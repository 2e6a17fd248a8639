// What is expected of runs with a liar, in tiles and in stages alike.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "run.hpp"

namespace cleave::testing_run {

/// Device 1 lies, and is found out some steps after its first lie, if so few tasklets are looked at as `setting` says
/// of a mode: what it did in the steps before is taken back, under the emulated clock and without.
inline void expect_earlier_steps_taken_back(const std::function<Setting(server::VerifyMode)>& setting) {
  std::int64_t taken_back = 0;
  for (const server::VerifyMode mode : {server::VerifyMode::quorum, server::VerifyMode::audit}) {
    for (const server::ClockMode clock : {server::ClockMode::virtual_time, server::ClockMode::off}) {
      Setting s = setting(mode);
      s.clock = clock;
      const Outcome outcome = train(s);
      EXPECT_EQ(outcome.distrusted, std::vector{DeviceId(1)});
      EXPECT_EQ(outcome.parts_stay, 0);
      EXPECT_EQ(outcome.hash, honest_bits(s));
      taken_back += outcome.taken_back;
    }
  }
  EXPECT_GT(taken_back, 0);
}

}  // namespace cleave::testing_run
