// Putting a placement through losses and churn; from usage to report.
#include "placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <list>
#include <numeric>
#include <optional>
#include <utility>

#include "cleave/base/random.hpp"
#include "cleave/sched/scheduler.hpp"
#include "network.hpp"

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

using FindLayouts = std::function<std::vector<PlacedLayout>(const StudyInput&)>;

// A device that is away keeps its number in the study for which layouts are found again, with no memory and this share
// of its rates: no layout has it.
constexpr double kAway = 1e-9;

// The layout in use, for the rates that steps have shown.
class Adapting {
 public:
  Adapting(const StudyInput& study, Placement& first, const FindLayouts& find)
      : study_(study),
        find_(find),
        now_(&first),
        factor_(study.devices.size(), 1),
        planned_for_(factor_),
        away_(study.devices.size(), false) {}

  [[nodiscard]] Placement& now() { return *now_; }

  void slow(std::size_t device, double factor) {
    factor_[device] = factor;
    now_->slow(device, factor / planned_for_[device]);
    plan_again_ = slowed_ = true;
  }
  // Of a device whether it is there. One that comes back may have been left out for being away.
  void set_away(std::size_t device, bool away) {
    away_[device] = away;
    if (!away && slowed_) plan_again_ = true;
  }

  // Between two steps.
  void plan_again() {
    if (!std::exchange(plan_again_, false)) return;
    StudyInput measured = study_;
    for (std::size_t d = 0; d < factor_.size(); ++d) {
      fleet::DeviceProfile& device = measured.devices[d];
      device = fleet::slowed(std::move(device), factor_[d] * (away_[d] ? kAway : 1));
      if (away_[d]) device.memory = Bytes(0);
    }
    measured.links = slowed_links(study_.links, factor_);
    measured_.push_back(std::move(measured));
    double shortest_s = now_->step().time_s;
    for (PlacedLayout& candidate : find_(measured_.back())) {
      const double step_s = candidate.placement->step().time_s;
      if (step_s >= shortest_s) continue;
      shortest_s = step_s;
      taken_ = std::move(candidate);
      now_ = taken_.placement.get();
      planned_for_ = factor_;
    }
  }

 private:
  const StudyInput& study_;
  const FindLayouts& find_;
  Placement* now_;
  std::vector<double> factor_, planned_for_;  // of the declared rates
  std::vector<bool> away_;
  bool slowed_ = false, plan_again_ = false;
  std::list<StudyInput> measured_;  // placements refer to them
  PlacedLayout taken_;
};

// Steps one after another while devices come and go. As in the product's own fleets a departure is known at once; it
// costs what the remedy says. What comes back is used from the next step on.
void run_under_churn(const StudyInput& study, Placement& placement, const FindLayouts& find, SystemReport& report) {
  double now_s = 0, recovery_s = 0, energy = 0;
  std::size_t next = 0;
  std::vector<std::size_t> back;
  std::vector<bool> gone(study.devices.size(), false);
  std::vector<fleet::ChurnEvent> churn = study.churn;
  std::erase_if(churn, [&](const fleet::ChurnEvent& event) { return event.device.value >= std::ssize(study.devices); });
  Adapting layout(study, placement, find);
  for (std::int64_t step = 0; step < study.steps; ++step) {
    for (const std::size_t device : back) {
      layout.now().restore(device);
      layout.set_away(device, false);
    }
    back.clear();
    layout.plan_again();
    while (next < churn.size() && churn[next].at.value() <= now_s && churn[next].kind == fleet::ChurnKind::slow) {
      layout.slow(static_cast<std::size_t>(churn[next].device.value), churn[next].factor);
      ++next;
    }
    const StepCost cost = layout.now().step();
    const double begin_s = now_s;
    double end_s = now_s + cost.time_s;
    while (next < churn.size() && churn[next].at.value() < end_s) {
      const fleet::ChurnEvent& event = churn[next++];
      const auto device = static_cast<std::size_t>(event.device.value);
      switch (event.kind) {
        case fleet::ChurnKind::leave:
        case fleet::ChurnKind::hang: {
          if (gone[device]) break;
          gone[device] = true;
          std::erase(back, device);
          layout.set_away(device, true);
          if (!layout.now().uses(device)) break;
          const double progress = std::clamp((event.at.value() - begin_s) / (end_s - begin_s), 0.0, 1.0);
          const std::size_t lost[] = {device};
          const Remedy remedy = layout.now().lose(lost, progress);
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
        case fleet::ChurnKind::slow: layout.slow(device, event.factor); break;
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

void run_study(const StudyInput& study, Placement& placement, const FindLayouts& find, SystemReport& report) {
  fill_report(study, placement.step(), report);
  if (!study.churn.empty()) {
    run_under_churn(study, placement, find, report);
  } else if (study.loss.devices > 0) {
    run_with_loss(study, placement, report);
  }
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

bool may_lose_devices(const StudyInput& study) { return !study.churn.empty() || study.loss.devices > 0; }

FleetMemory memory_of_fleet(const StudyInput& study) {
  FleetMemory memory;
  for (const fleet::DeviceProfile& device : study.devices) {
    memory.largest = std::max(memory.largest, static_cast<double>(device.memory.value()));
    memory.together += static_cast<double>(device.memory.value());
  }
  return memory;
}

std::vector<PlacedLayout> one_layout(std::string layout, std::unique_ptr<Placement> placement,
                                     std::shared_ptr<const void> owned) {
  std::vector<PlacedLayout> list;
  list.push_back({std::move(layout), std::move(owned), std::move(placement)});
  return list;
}

void PlacedSystem::carry_out(const StudyInput& study, const std::function<Seconds()>& elapsed,
                             SystemReport& report) const {
  const std::vector<PlacedLayout> candidates = find_layouts(study, report);
  report.planning = elapsed();
  if (candidates.empty()) {
    report.feasible = false;
    return;
  }
  const FindLayouts find = [this](const StudyInput& measured) {
    SystemReport unused;
    return find_layouts(measured, unused);
  };
  const auto better = [&](const SystemReport& a, const SystemReport& b) {
    if (a.feasible != b.feasible) return a.feasible;
    const bool survives = std::isfinite(a.recovery.value());
    if (study.churn.empty() && survives != std::isfinite(b.recovery.value())) return survives;
    return a.feasible && a.step < b.step;
  };
  std::optional<SystemReport> best;
  for (const PlacedLayout& candidate : candidates) {
    SystemReport tried = report;
    tried.layout = candidate.layout;
    run_study(study, *candidate.placement, find, tried);
    if (!best || better(tried, *best)) best = std::move(tried);
  }
  report = std::move(*best);
}

}  // namespace cleave::rivals
