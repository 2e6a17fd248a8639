// Putting a placement through losses and churn; from usage to report.
#include "placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "cleave/base/random.hpp"
#include "cleave/sched/scheduler.hpp"

namespace cleave::rivals {

namespace {

double busiest_s(const sched::Usage& used) {
  return std::max({used.down.value(), used.compute.value(), used.up.value()});
}

std::vector<bool> used_devices(const StudyInput& study, const Placement& placement) {
  std::vector<bool> used(study.devices.size());
  for (std::size_t d = 0; d < used.size(); ++d) used[d] = placement.uses(d);
  return used;
}

void run_with_loss(const StudyInput& study, Placement& placement, SystemReport& report) {
  const std::vector<std::size_t> victims = choose_victims(study, used_devices(study, placement));
  if (victims.empty()) return;
  const Remedy remedy = placement.lose(victims, study.loss.progress);
  report.recovery = study.detection + Seconds(remedy.added_s);
  report.figures.insert(report.figures.end(), remedy.figures.begin(), remedy.figures.end());
  if (!remedy.survives) {
    report.recovery = Seconds(std::numeric_limits<double>::infinity());
    report.why = fmt::format("runs, but does not survive the loss of {}: {}",
                             victims.size() == 1 ? "a device" : fmt::format("{} devices", victims.size()), remedy.why);
  }
}

// Steps one after another while devices come and go. As in the product's own fleets a departure is known at once; it
// costs what the remedy says. What comes back is used from the next step on.
void run_under_churn(const StudyInput& study, Placement& placement, SystemReport& report) {
  double now_s = 0, recovery_s = 0, energy = 0;
  std::size_t next = 0;
  std::vector<std::size_t> back;
  std::vector<bool> gone(study.devices.size(), false);
  for (std::int64_t step = 0; step < study.steps; ++step) {
    for (const std::size_t device : back) placement.restore(device);
    back.clear();
    while (next < study.churn.size() && study.churn[next].at.value() <= now_s &&
           study.churn[next].kind == fleet::ChurnKind::slow) {
      placement.slow(static_cast<std::size_t>(study.churn[next].device.value), study.churn[next].factor);
      ++next;
    }
    const StepCost cost = placement.step();
    const double begin_s = now_s;
    double end_s = now_s + cost.time_s;
    while (next < study.churn.size() && study.churn[next].at.value() < end_s) {
      const fleet::ChurnEvent& event = study.churn[next++];
      const auto device = static_cast<std::size_t>(event.device.value);
      if (device >= study.devices.size()) continue;
      switch (event.kind) {
        case fleet::ChurnKind::leave:
        case fleet::ChurnKind::hang: {
          if (gone[device]) break;
          gone[device] = true;
          std::erase(back, device);
          if (!placement.uses(device)) break;
          const double progress = std::clamp((event.at.value() - begin_s) / (end_s - begin_s), 0.0, 1.0);
          const std::size_t lost[] = {device};
          const Remedy remedy = placement.lose(lost, progress);
          if (!remedy.survives) {
            report.feasible = false;
            report.why = fmt::format("stops in step {} after {:.0f} s: {}", step + 1, event.at.value(), remedy.why);
            return;
          }
          end_s += remedy.added_s;
          recovery_s += remedy.added_s;
          break;
        }
        case fleet::ChurnKind::join:
          if (gone[device]) back.push_back(device);
          gone[device] = false;
          break;
        case fleet::ChurnKind::slow: placement.slow(device, event.factor); break;
        case fleet::ChurnKind::faulty: break;  // none of the rivals checks results
      }
    }
    for (std::size_t d = 0; d < study.devices.size(); ++d) {
      energy += sched::energy_of(study.devices[d], cost.usage[d], Seconds(end_s - begin_s)).value();
    }
    now_s = end_s;
  }
  const auto steps = static_cast<double>(study.steps);
  report.step = Seconds(now_s / steps);
  report.recovery = Seconds(recovery_s / steps);
  report.energy = Joules(energy / steps);
}

}  // namespace

std::vector<std::size_t> choose_victims(const StudyInput& study, const std::vector<bool>& used) {
  const Random random(study.loss.seed, Purpose::rivals, 3);
  std::vector<std::size_t> order(study.devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return random.bits(a) < random.bits(b); });
  std::erase_if(order, [&](std::size_t d) { return !used[d]; });
  if (order.size() > static_cast<std::size_t>(study.loss.devices)) {
    order.resize(static_cast<std::size_t>(study.loss.devices));
  }
  return order;
}

void fill_report(const StudyInput& study, const StepCost& cost, SystemReport& report) {
  report.devices = static_cast<std::int64_t>(study.devices.size());
  report.devices_used = 0;
  report.step = Seconds(cost.time_s);
  for (std::size_t d = 0; d < study.devices.size(); ++d) {
    const sched::Usage& used = cost.usage[d];
    if (used.compute.value() > 0) ++report.devices_used;
    report.lower_bound = std::max(report.lower_bound, Seconds(busiest_s(used)));
    report.compute = std::max(report.compute, used.compute);
    report.bytes_down += used.bytes_down;
    report.bytes_up += used.bytes_up;
    report.device_bytes_down_max = std::max(report.device_bytes_down_max, used.bytes_down);
    report.device_memory_max = std::max(report.device_memory_max, used.memory_peak);
    report.energy += sched::energy_of(study.devices[d], used, report.step);
  }
}

void run_study(const StudyInput& study, Placement& placement, SystemReport& report) {
  fill_report(study, placement.step(), report);
  if (!study.churn.empty()) {
    run_under_churn(study, placement, report);
  } else if (study.loss.devices > 0) {
    run_with_loss(study, placement, report);
  }
}

bool may_lose_devices(const StudyInput& study) { return !study.churn.empty() || study.loss.devices > 0; }

void run_best(const StudyInput& study, std::span<const Candidate> candidates, SystemReport& report) {
  const auto better = [&](const SystemReport& a, const SystemReport& b) {
    if (a.feasible != b.feasible) return a.feasible;
    if (!study.churn.empty()) return a.feasible && a.step < b.step;
    return std::isfinite(a.recovery.value()) && !std::isfinite(b.recovery.value());
  };
  std::optional<SystemReport> best;
  for (const Candidate& candidate : candidates) {
    SystemReport tried = report;
    tried.layout = candidate.layout;
    run_study(study, *candidate.placement, tried);
    if (!best || better(tried, *best)) best = std::move(tried);
  }
  report = std::move(*best);
}

}  // namespace cleave::rivals
