// Devices that leave, join, slow down, hang and lie at any moment of a run.
#pragma once

#include <algorithm>

#include "cleave/base/random.hpp"
#include "cleave/fleet/churn.hpp"

namespace cleave::testing_run {

/// Up to 30 events over the time of the undisturbed run and half as much again.
inline fleet::ChurnTrace random_schedule(std::uint64_t seed, std::int64_t devices, Seconds whole, bool liars) {
  const Random random(seed, Purpose::test, 1);
  fleet::ChurnTrace trace;
  const std::uint64_t events = 1 + random.below(0, 30);
  for (std::uint64_t i = 1; i <= events; ++i) {
    const DeviceId device(static_cast<std::int64_t>(random.below(4 * i, static_cast<std::uint64_t>(devices))));
    const Seconds at = whole * (1.5 * random.uniform(4 * i + 1));
    switch (random.below(4 * i + 2, liars ? 9 : 8)) {
      case 0:
      case 1:
      case 2: trace.push_back({at, device, fleet::ChurnKind::leave, 1.0}); break;
      case 3:
      case 4: trace.push_back({at, device, fleet::ChurnKind::join, 1.0}); break;
      case 5:
      case 6: trace.push_back({at, device, fleet::ChurnKind::slow, 0.1 + random.uniform(4 * i + 3)}); break;
      case 7: trace.push_back({at, device, fleet::ChurnKind::hang, 1.0}); break;
      default: trace.push_back({at, device, fleet::ChurnKind::faulty, 1.0}); break;
    }
  }
  std::stable_sort(trace.begin(), trace.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
  return trace;
}

/// Devices stay for `session` times the undisturbed run on average and are away for a tenth of it, over five such runs;
/// three in ten slow down to a twentieth.
inline fleet::ChurnTrace sessions_in(Seconds run, double session, std::int64_t devices, std::uint64_t seed) {
  return fleet::draw_churn({.mean_session = run * session,
                            .mean_absence = run * 0.1,
                            .slow_fraction = 0.3,
                            .slow_factor = 0.05,
                            .seed = seed},
                           devices, run * 5);
}

/// The first three devices, in turn, leave, come back, fall silent and come back at one moment: every half millisecond
/// at first, then ever more rarely (each time later by a tenth), up to a quarter of a minute. A quick host meets many
/// such moments, and one that is slow or busy, where planning alone takes as long as a whole run elsewhere, still meets
/// some.
inline fleet::ChurnTrace bursts() {
  using enum fleet::ChurnKind;
  constexpr Seconds kFirst(5e-4), kRarer(0.03), kEnd(15.0);
  fleet::ChurnTrace trace;
  std::int64_t burst = 0;
  for (Seconds at(0.0); at < kEnd; at = at < kRarer ? at + kFirst : at * 1.1, ++burst) {
    for (const fleet::ChurnKind kind : {leave, join, hang, join}) trace.push_back({at, DeviceId(burst % 3), kind, 1.0});
  }
  return trace;
}

}  // namespace cleave::testing_run
