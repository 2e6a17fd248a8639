// Runs in which a fifth of the devices lie, drawn from a seed: who, how, and in what share of their tasklets.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "run.hpp"

namespace cleave::testing_run {

constexpr std::int64_t kLiarRunDevices = 5;

/// A model of so many operations, in so many row groups, that a device has hundreds of tasklets in a step, as one of
/// the published fleet has: five devices that are alike, quorum with fraction 0.1, rollback 20.
inline Setting liar_run_setting() {
  Setting s = small_setting();
  s.model.n_layer = 10;
  s.row_groups = 16;
  s.batch = 16;
  s.steps = 26;
  s.devices = alike_devices(kLiarRunDevices);
  s.verification = {.mode = server::VerifyMode::quorum, .fraction = 0.1, .rollback = 20};
  return s;
}

/// The same in stages: many sequences and stages, so that a device has some hundred tasklets in a step.
inline Setting stage_liar_run_setting() {
  Setting s = liar_run_setting();
  s.model.n_layer = 3;
  s.row_groups = 1;
  s.batch = 256;
  s.layout = sched::Layout::stages;
  return s;
}

/// The liar of a run: of any kind that leaves results finite, in 1 % to all of its tasklets, evenly on a logarithmic
/// scale; each tenth run has a share of 1 % itself.
inline fleet::ChurnEvent draw_liar(std::uint64_t seed) {
  using Kind = fleet::InjectedFaultKind;
  constexpr std::array kKinds{Kind::element, Kind::bit, Kind::swap_rows, Kind::bias, Kind::stale, Kind::other};
  const Random random(seed, Purpose::test);
  const double share = seed % 10 == 1 ? 0.01 : std::pow(10.0, -2.0 * random.uniform(0));
  return {Seconds(0), DeviceId(static_cast<std::int64_t>(random.below(1, kLiarRunDevices))), fleet::ChurnKind::faulty,
          share, kKinds[random.below(2, kKinds.size())]};
}

}  // namespace cleave::testing_run
