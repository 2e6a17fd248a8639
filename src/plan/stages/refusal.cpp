// Finds out how much memory is missing: for a piece on the largest device; or for a layout, by trying larger and larger
// devices until one is found.
#include "stages/refusal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/base/show.hpp"

namespace cleave::plan::stages {

namespace {

constexpr const char* kHint = "plan.layout: tiles needs less memory of a device";

// Factors of all devices' memories, tried in this order.
constexpr double kMultiples[] = {1.1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16};

// "device 3 (phone, 512.0 MB)"
std::string name_of(const Problem& problem, std::size_t i) {
  const fleet::DeviceProfile& device = problem.devices[i];
  return fmt::format("device {} ({}, {})", device.id.value, device.name, show_bytes(device.memory));
}

bool fits(const Problem& problem, double multiple) {
  Problem larger = problem;
  for (double& memory : larger.memory) memory *= multiple;
  const std::vector<Settings> tried = settings_of_any_work();
  return std::ranges::any_of(tried, [&](const Settings& settings) { return lay_out(larger, settings).has_value(); });
}

}  // namespace

void refuse(const Problem& problem) {
  const StageWork& work = *problem.work;
  const auto richest = static_cast<std::size_t>(std::ranges::max_element(problem.memory) - problem.memory.begin());
  const auto poorest = static_cast<std::size_t>(std::ranges::min_element(problem.memory) - problem.memory.begin());
  double most = 0;
  std::string widest;
  for (std::int64_t i = 0; i < std::ssize(work.pieces); ++i) {
    const StageDraft draft(StageCost(work, i, i + 1, kChunkTokens));
    const double needed = static_cast<double>(draft.cost.least_replica().value());
    if (needed <= most) continue;
    most = needed;
    widest = work.pieces[static_cast<std::size_t>(i)].name();
  }
  if (problem.memory[richest] < most) {
    throw InputError(
        fmt::format("the weights of '{}' with its open sequences take {}; {}, which has most memory, lacks {}", widest,
                    show_bytes(most), name_of(problem, richest), show_bytes(most - problem.memory[richest])),
        kHint);
  }
  double all = 0;
  for (const double memory : problem.memory) all += memory;
  const double sums =
      weights_of(work) * (1 + static_cast<double>(sum_bytes(work.wire)) / static_cast<double>(size_of(work.wire)));
  std::string text = fmt::format(
      "weights, open sequences and sums of gradients do not fit the fleet: weights and sums alone take {} of {}",
      show_bytes(sums), show_bytes(all));
  const auto enough = std::ranges::find_if(kMultiples, [&](double multiple) { return fits(problem, multiple); });
  if (enough == std::end(kMultiples)) {
    if (sums > all) throw InputError(text + "; more devices are needed", kHint);
    throw InputError(fmt::format("no layout in stages was found for this fleet, though weights and sums take {} of {}: "
                                 "single devices are too small, or their links too slow, for what a stage needs",
                                 show_bytes(sums), show_bytes(all)),
                     kHint);
  }
  text += fmt::format("; a layout was found for {:g} times the memory: {}, which has most, lacks {}", *enough,
                      name_of(problem, richest), show_bytes((*enough - 1) * problem.memory[richest]));
  if (problem.memory[poorest] < problem.memory[richest]) {
    text += fmt::format(", and {}, which has least, {}", name_of(problem, poorest),
                        show_bytes((*enough - 1) * problem.memory[poorest]));
  }
  throw InputError(text, kHint);
}

}  // namespace cleave::plan::stages
