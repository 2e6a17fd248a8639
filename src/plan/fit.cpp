// A piece that is too large for its device is cut in two, where the cut sends least again, until every part fits.
#include "fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "cleave/base/error.hpp"
#include "cleave/plan/cost.hpp"
#include "gemm_costs.hpp"
#include "order.hpp"
#include "partition.hpp"

namespace cleave::plan {

namespace {

bool usable(const DeviceState& device) {
  const auto positive = [](double rate) { return rate > 0; };  // false for NaN, too
  return positive(device.profile.compute.value()) && positive(device.profile.downlink.value()) &&
         positive(device.profile.uplink.value()) && std::isfinite(device.profile.latency.value());
}

// Cuts rows, columns or depth in two; the halves are as equal as whole K blocks allow.
std::pair<TaskletPlan, TaskletPlan> halves(const Work& work, const TaskletPlan& piece, const DeviceState& device) {
  TaskletPlan low = piece, high = piece;
  if (work.kind != WorkKind::gemm) {
    const std::int64_t middle = piece.pairs.pair0 + piece.pairs.count() / 2;
    low.pairs.pair1 = high.pairs.pair0 = middle;
    return {low, high};
  }
  const GemmBox& box = piece.box;
  if (piece.columns_kept) {  // they are there as they are
    low.box.m1 = high.box.m0 = box.m0 + box.m() / 2;
    return {low, high};
  }
  const GemmCosts costs = gemm_costs(work, box);
  const double down = device.profile.downlink.value(), up = device.profile.uplink.value();
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // Cutting rows sends the columns twice; cutting depth returns the result twice, as partial sums.
  const double partial = static_cast<double>(size_of(partial_sum_type(work.wire)));
  const double rows = box.m() > 1 ? static_cast<double>(box.n() * costs.strip_bytes) / down : kNever;
  const double columns = box.n() > 1 ? static_cast<double>(box.m() * costs.strip_bytes) / down : kNever;
  const double depth = k_blocks(box.k()) > 1 ? static_cast<double>(box.m() * box.n()) *
                                                   (2 * partial - static_cast<double>(costs.result_bytes)) / up
                                             : kNever;
  if (depth < rows && depth < columns) {
    low.box.k1 = high.box.k0 = k_panel_end(box, 2, 0);
  } else if (rows <= columns) {
    low.box.m1 = high.box.m0 = box.m0 + box.m() / 2;
  } else {
    low.box.n1 = high.box.n0 = box.n0 + box.n() / 2;
  }
  return {low, high};
}

// It cannot be cut in two.
bool is_smallest(const Work& work, const TaskletPlan& piece) {
  if (work.kind != WorkKind::gemm) return piece.pairs.count() <= 1;
  const bool one_row = piece.box.m() <= 1;
  return piece.columns_kept ? one_row : one_row && piece.box.n() <= 1 && k_blocks(piece.box.k()) <= 1;
}

}  // namespace

TaskletPlan smallest_piece(const Work& work) {
  TaskletPlan piece;
  piece.box = {0, 1, 0, 1, 0, std::min(kBlockK, work.gemm.k)};
  piece.pairs = {0, 1};
  return piece;
}

std::vector<DeviceState> usable_devices(const Work& work, std::span<const DeviceState> devices,
                                        const PlanOptions& options) {
  std::vector<DeviceState> found;
  const Bytes needed = resident_bytes(work, smallest_piece(work));
  // It travels in one panel, so whether a device can have it depends on memory and on the limit of a message alone.
  const bool travels = messages_fit(panels_of(work, smallest_piece(work)), options);
  Bytes had{0};
  std::int64_t working = 0;
  for (const DeviceState& device : devices) {
    if (!usable(device)) continue;
    ++working;
    had = std::max(had, device.profile.memory);
    if (travels && device.profile.memory >= needed) found.push_back(device);
  }
  if (found.empty()) {
    if (working == 0) {
      throw InputError(
          fmt::format("no device can compute: {} devices, none with a positive rate of processor, "
                      "downlink and uplink",
                      devices.size()));
    }
    if (!travels) throw InputError("the smallest block of the work does not fit one message of 1 GiB");
    throw InputError(fmt::format("no device can hold the smallest block of the work: it takes {} B, the largest memory "
                                 "of {} devices is {} B",
                                 needed.value(), working, had.value()),
                     "give the devices more memory");
  }
  // In an order that does not depend on names, so that renaming devices renames the plan and changes nothing else.
  const auto key = [](const DeviceState& d) {
    const fleet::DeviceProfile& p = d.profile;
    return std::make_tuple(-p.downlink.value(), -p.uplink.value(), -p.compute.value(), p.latency.value(),
                           -p.memory.value(), d.down_busy.value(), d.up_busy.value(), d.compute_busy.value(),
                           p.id.value);
  };
  std::sort(found.begin(), found.end(), [&](const DeviceState& a, const DeviceState& b) { return key(a) < key(b); });
  return found;
}

std::vector<TaskletPlan> fit_piece(const Work& work, const TaskletPlan& piece, const DeviceState& device,
                                   const PlanOptions& options) {
  std::vector<TaskletPlan> parts, todo{piece};
  while (!todo.empty()) {
    TaskletPlan part = todo.back();
    todo.pop_back();
    if (choose_order(work, part, device, options)) {
      parts.push_back(part);
      continue;
    }
    if (is_smallest(work, part))
      throw InputError(fmt::format("device {} cannot hold the smallest block of the work", device.profile.id.value),
                       "give the devices more memory");
    const auto [low, high] = halves(work, part, device);
    todo.push_back(high);
    todo.push_back(low);
  }
  return parts;
}

}  // namespace cleave::plan
