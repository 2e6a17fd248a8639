// PlanCache: plans for an idle fleet, made once for each shape of operation.
//
// A transformer's step has few shapes and hundreds of operations. Plans hold for the devices of the last renew(), whose
// loads do not count: devices serve tasklets in order, and every operation is planned as if it were alone.
#pragma once

#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cleave/plan/plan.hpp"
#include "work_hash.hpp"

namespace cleave::sched {

class PlanCache {
 public:
  explicit PlanCache(plan::PlanOptions options) : options_(std::move(options)) {}

  /// Forgets every plan; the next ones are for `devices`, and version() is another.
  void renew(std::vector<plan::DeviceState> devices);
  /// No devices: plans have the server compute everything itself.
  [[nodiscard]] bool no_devices() const { return devices_.empty(); }
  /// 0 before the first renew().
  [[nodiscard]] std::uint64_t version() const { return version_; }
  /// Those of the last renew(), idle.
  [[nodiscard]] std::span<const plan::DeviceState> devices() const { return devices_; }

  /// The plan of one operation over all devices; where none of those that are left can hold its smallest block, the
  /// server computes it itself. Valid until renew(). Errors: as plan::plan_operation, of the first devices.
  [[nodiscard]] const plan::OperationPlan& plan_for(const plan::Work& work);
  /// Plans of operations that are ready together, on parts of the fleet of their own where that is quicker (share.hpp).
  /// The list is valid until the next call.
  [[nodiscard]] std::span<const plan::OperationPlan* const> plans_for(std::span<const plan::Work> works);

 private:
  static constexpr std::uint64_t kFirst = 1;  // version
  [[nodiscard]] plan::OperationPlan make_plan(const plan::Work& work) const;

  plan::PlanOptions options_;
  std::vector<plan::DeviceState> devices_;
  std::uint64_t version_ = 0;
  std::unordered_map<plan::Work, plan::OperationPlan, WorkHash> plans_;
  /// Empty where sharing gains nothing.
  std::unordered_map<std::vector<plan::Work>, std::vector<plan::OperationPlan>, WorksHash, SameWorks> shared_;
  std::vector<const plan::OperationPlan*> together_;
};

}  // namespace cleave::sched
