// Planning each shape once.
#include "plan_cache.hpp"

#include "cleave/base/error.hpp"
#include "share.hpp"

namespace cleave::sched {

namespace {

/// More operations than this that become ready together are not planned jointly.
constexpr std::size_t kMostTogether = 8;

// The whole work as one block that the server computes itself.
plan::OperationPlan server_plan(const plan::Work& work) {
  plan::TaskletPlan piece;
  piece.device = kServerDevice;
  piece.box = {0, work.gemm.m, 0, work.gemm.n, 0, work.gemm.k};
  piece.pairs = {0, work.attention.pairs()};
  plan::OperationPlan plan;
  plan.tasklets.push_back(piece);
  return plan;
}

}  // namespace

void PlanCache::renew(std::vector<plan::DeviceState> devices) {
  plans_.clear();
  shared_.clear();
  ++version_;
  devices_ = std::move(devices);
  for (plan::DeviceState& device : devices_) device.down_busy = device.compute_busy = device.up_busy = Seconds(0);
}

const plan::OperationPlan& PlanCache::plan_for(const plan::Work& work) {
  const auto found = plans_.find(work);
  if (found != plans_.end()) return found->second;
  return plans_.emplace(work, make_plan(work)).first->second;
}

plan::OperationPlan PlanCache::make_plan(const plan::Work& work) const {
  if (no_devices()) return server_plan(work);
  try {
    return plan::plan_operation(work, devices_, options_);
  } catch (const InputError&) {
    if (version_ <= kFirst) throw;
    return server_plan(work);
  }
}

std::span<const plan::OperationPlan* const> PlanCache::plans_for(std::span<const plan::Work> works) {
  together_.clear();
  for (const plan::Work& work : works) together_.push_back(&plan_for(work));
  if (works.size() < 2 || works.size() > kMostTogether || options_.partition != plan::Partition::automatic ||
      no_devices()) {
    return together_;
  }
  auto found = shared_.find(works);
  if (found == shared_.end()) {
    found = shared_.try_emplace({works.begin(), works.end()}, share_fleet(works, together_, devices_, options_)).first;
  }
  if (found->second.empty()) return together_;
  together_.clear();
  for (const plan::OperationPlan& plan : found->second) together_.push_back(&plan);
  return together_;
}

}  // namespace cleave::sched
