// Planning: which devices may get work, at which rates, and the plans that hold for them.
//
// Plans are valid for one roster, one set of devices left out and one set of rates; renew() makes them void when any of
// these is another. Where a device is not to be trusted, keeps failing or does otherwise than it declares is told here.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "background_scheduler.hpp"
#include "cleave/sched/operation_set.hpp"
#include "cleave/sched/scheduler.hpp"
#include "estimation/rate_estimates.hpp"
#include "plan_cache.hpp"
#include "ready_set.hpp"
#include "recovery/breaker.hpp"
#include "residency/device_partitions.hpp"
#include "residency/weight_cache.hpp"

namespace cleave::sched {

class Planning {
 public:
  /// `fleet`, `options` and `weights`, which is told when plans are void, must outlive it.
  Planning(Fleet& fleet, const SchedulerOptions& options, WeightCache& weights);
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

  /// A new step, of which these operations are run; `urgency` of all as of urgencies().
  void begin(const model::StepGraph& graph, const std::vector<int>& urgency, const OperationSet& part);
  /// Takes over learned rates that are worth new plans.
  void renew_rates() { estimates_.renew(false); }
  /// Plans all operations of a set, for the devices as they are. Errors: as plan::plan_operation.
  void choose(ReadySet& ready);
  /// An operation is complete.
  void complete(const model::Operation& op);
  /// Plans pieces of an operation that were lost over the devices that remain, as a tasklet of this priority finds
  /// them. The server takes them where no device can, where they were lost too often before, and where everybody who is
  /// there keeps failing: where nobody answers, a step must end all the same.
  [[nodiscard]] std::vector<plan::TaskletPlan> again(const plan::Work& work,
                                                     const std::vector<plan::TaskletPlan>& pieces,
                                                     const Priority& priority, int losses) const;

  /// Devices that may get work, at the rates that they are estimated to have. Those that keep failing only when nobody
  /// else is there.
  [[nodiscard]] std::vector<plan::DeviceState> usable_devices() const;

  [[nodiscard]] PlanCache& plans() { return plans_; }
  [[nodiscard]] const DevicePartitions& partitions() const { return partitions_; }
  [[nodiscard]] BackgroundScheduler& background() { return background_; }

  // What devices did.
  void observe(DeviceId device, const Measured& measured) {
    if (options_.learn) estimates_.observe(device, measured);
  }
  void answered(DeviceId device) { breaker_.answered(device); }
  void failed(DeviceId device) { breaker_.failed(device, fleet_.now()); }
  void distrust(DeviceId device) { distrusted_.insert(device); }
  [[nodiscard]] const std::set<DeviceId>& distrusted() const { return distrusted_; }
  [[nodiscard]] bool leaves_out(DeviceId device) const { return breaker_.leaves_out(device); }

 private:
  [[nodiscard]] std::vector<plan::DeviceState> usable(std::vector<plan::DeviceState> devices) const;
  void renew();

  Fleet& fleet_;
  const SchedulerOptions& options_;
  WeightCache& weights_;
  std::set<DeviceId> distrusted_;
  Breaker breaker_;
  RateEstimates estimates_;
  using Version = std::tuple<std::uint64_t, std::size_t, std::uint64_t, std::uint64_t>;
  std::optional<Version> planned_for_;
  PlanCache plans_;
  DevicePartitions partitions_;
  BackgroundScheduler background_;
  std::vector<bool> critical_;  // by operation: it is of the critical path, and runs on devices
};

}  // namespace cleave::sched
