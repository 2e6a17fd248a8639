// Losses in a grid of replicas.
#include "replica_grid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace cleave::rivals {

std::vector<std::size_t> by_link(const StudyInput& study) {
  std::vector<std::size_t> order(study.devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto link = [&](std::size_t d) { return std::min(study.devices[d].uplink, study.devices[d].downlink); };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return link(a) > link(b); });
  return order;
}

std::vector<std::size_t> with_room(const StudyInput& study, std::span<const std::size_t> order, double bytes,
                                   std::size_t most) {
  std::vector<std::size_t> able;
  for (const std::size_t d : order) {
    if (able.size() == most) break;
    if (static_cast<double>(study.devices[d].memory.value()) >= bytes) able.push_back(d);
  }
  return able;
}

std::vector<Grid> worth_trying(const StudyInput& study, Grid grid) {
  if (grid.size() > 1 || grid.front().size() > 1) return {std::move(grid)};
  std::vector<std::size_t> order(study.devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](std::size_t d) { return std::pair(study.devices[d].compute, study.devices[d].memory); });
  std::vector<Grid> grids;
  Bytes largest{-1};
  for (const std::size_t d : order) {
    if (study.devices[d].memory <= largest) continue;
    largest = study.devices[d].memory;
    grids.push_back({{d}});
  }
  return grids;
}

std::int64_t sharing_of(const StudyInput& study, std::size_t replicas) {
  const std::size_t copies = study.churn.empty() && study.loss.devices == 0 ? 1 : 2;
  return static_cast<std::int64_t>(std::max<std::size_t>(1, replicas / copies));
}

ReplicaGrid::ReplicaGrid(const StudyInput& study, Workload workload, Grid grid)
    : declared_(study.devices),
      devices_(study.devices),
      declared_links_(study.links),
      factor_(study.devices.size(), 1.0),
      network_(devices_, declared_links_),
      workload_(std::move(workload)),
      original_(std::move(grid)),
      grid_(original_),
      lost_(study.devices.size(), false) {}

bool ReplicaGrid::uses(std::size_t device) const {
  return std::any_of(grid_.begin(), grid_.end(), [&](const std::vector<std::size_t>& replica) {
    return std::find(replica.begin(), replica.end(), device) != replica.end();
  });
}

Grid ReplicaGrid::form() const {
  Grid grid;
  std::vector<std::vector<std::size_t>> spares(original_.front().size());  // by position
  for (const std::vector<std::size_t>& replica : original_) {
    const bool intact = std::none_of(replica.begin(), replica.end(), [&](std::size_t d) { return lost_[d]; });
    if (intact) {
      grid.push_back(replica);
      continue;
    }
    for (std::size_t p = 0; p < replica.size(); ++p) {
      if (!lost_[replica[p]]) spares[p].push_back(replica[p]);
    }
  }
  for (std::size_t formed = 0;; ++formed) {
    std::vector<std::size_t> replica;
    for (const std::vector<std::size_t>& devices : spares) {
      if (formed >= devices.size()) return grid;
      replica.push_back(devices[formed]);
    }
    if (holds(replica)) grid.push_back(std::move(replica));
  }
}

Remedy ReplicaGrid::lose(std::span<const std::size_t> devices, double progress) {
  const std::vector<std::int64_t> shares = shares_of(grid_);
  const double before_s = cost_of(grid_, shares).time_s;
  double kept = 0;  // share of the batch in the hands of replicas that stay whole
  for (const std::size_t device : devices) lost_[device] = true;
  for (std::size_t r = 0; r < grid_.size(); ++r) {
    const bool intact = std::none_of(grid_[r].begin(), grid_[r].end(), [&](std::size_t d) { return lost_[d]; });
    if (intact) kept += static_cast<double>(shares[r]) / static_cast<double>(workload_.batch);
  }
  Grid remaining = form();
  Remedy remedy;
  if (remaining.empty()) {
    remedy.survives = false;
    remedy.why = "part of the weights and moments was on no other device";
    return remedy;
  }
  grid_ = std::move(remaining);
  const double after_s = step().time_s;
  remedy.added_s = std::max(0.0, after_s * (1 - progress * kept) - before_s * (1 - progress));
  return remedy;
}

void ReplicaGrid::restore(std::size_t device) {
  lost_[device] = false;
  grid_ = form();
}

void ReplicaGrid::slow(std::size_t device, double factor) {
  factor_[device] = factor;
  devices_[device] = fleet::slowed(declared_[device], factor);
  if (declared_links_.empty()) return;
  slowed_links_ = slowed_links(declared_links_, factor_);
  network_ = Network(devices_, slowed_links_);
}

}  // namespace cleave::rivals
