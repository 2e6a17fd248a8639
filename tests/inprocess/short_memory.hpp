// Settings whose devices have about the least memory with which stages can be laid out.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "head_in_parts.hpp"
#include "run.hpp"

namespace cleave::testing_run {

inline plan::StageWork work_of(const Setting& s) { return plan::stage_work_of(graph_of(s), s.wire); }

/// Devices of so little memory that stages need rounds: about the least with which there is a layout without tiles, and
/// more.
inline Setting in_rounds(Setting s, std::vector<fleet::DeviceProfile> devices, int ranks, double more = 1) {
  s = in_stages(std::move(s), std::move(devices), ranks);
  const plan::StageWork work = work_of(s);
  plan::StageOptions options = sched::stage_scheduler_options(options_of(s)).stages;
  options.tiles = false;
  std::int64_t low = 1'000, high = 64 << 20;
  while (high - low > low / 100) {
    const std::int64_t middle = (low + high) / 2;
    set_memory(s, middle);
    (plan::find_stages(work, s.devices, options) ? high : low) = middle;
  }
  set_memory(s, static_cast<std::int64_t>(more * static_cast<double>(high)));
  return s;
}

inline Setting deep_setting() {
  Setting s = small_setting();
  s.model.n_layer = 6;
  return s;
}

using Freezes = std::vector<std::vector<std::string>>;  // patterns of names

/// With tensors frozen, and under every clock, steps and evaluations of what `laid_out` makes of a setting have the
/// bits of tiles.
template <class LaidOut>
void expect_same_bits_with_frozen_tensors(const Freezes& freezes, const LaidOut& laid_out) {
  for (const std::vector<std::string>& freeze : freezes) {
    Setting plain = deep_setting();
    plain.freeze = freeze;
    plain.grad_clip = 0;
    const std::uint64_t wanted = train(plain).hash;
    for (const server::ClockMode clock :
         {server::ClockMode::virtual_time, server::ClockMode::wall, server::ClockMode::off}) {
      Setting s = laid_out(plain);
      s.clock = clock;
      s.evaluations = 2;
      EXPECT_EQ(train(s).hash, wanted) << freeze.size();
    }
  }
}

}  // namespace cleave::testing_run
