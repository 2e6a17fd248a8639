// Times of rounds that run in tiles, from their operations.
#include "stages/tile_rounds.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "cleave/plan/bound.hpp"
#include "cleave/plan/cost.hpp"

namespace cleave::plan::stages {

namespace {

constexpr double kOverlap = 0.6;  // factor of the time one after another, for operations that run beside others

}  // namespace

double forecast_tiles(const StageWork& work, std::int64_t first, std::int64_t end, bool back,
                      std::span<const fleet::DeviceProfile> devices, const fleet::ServerProfile& server) {
  double up = 0, down = 0, flops = 0;
  for (const fleet::DeviceProfile& device : devices) {
    up += device.uplink.value();
    down += device.downlink.value();
    flops += device.compute.value();
  }
  up = std::min(up, server.nic_in.value());
  down = std::min(down, server.nic_out.value());
  const double count = static_cast<double>(devices.size()), size = static_cast<double>(size_of(work.wire));
  double results_s = 0, one_by_one = 0, kernels = 0;
  for (const model::Operation* op : operations_in_tiles(work, first, end, back)) {
    if (!model::runs_on_devices(op->kind)) {
      kernels += kernel_time(*op, server).value();
      continue;
    }
    const Work of = work_of(*op, work.wire);
    const Volume volume = volume_of(of);
    double operands = static_cast<double>(volume.down.value());
    if (of.kind == WorkKind::gemm)
      operands =
          std::max(operands, 2 * std::sqrt(static_cast<double>(of.gemm.m) * static_cast<double>(of.gemm.n) * count) *
                                 static_cast<double>(of.gemm.k) * size);
    const double results = static_cast<double>(volume.up.value()) / up;
    results_s += results;
    one_by_one += std::max({operands / down, results, volume.flops.value() / flops});
  }
  return kernels + std::max(results_s, (back ? kOverlap : 1) * one_by_one);
}

TilesBound::TilesBound(std::span<const fleet::DeviceProfile> devices, const fleet::ServerProfile& server) {
  for (const fleet::DeviceProfile& device : devices) devices_.push_back({device, {}, {}, {}});
  options_.server = server;
}

double TilesBound::bound_of(const Work& work) {
  const auto found = std::ranges::find(known_, work, &std::pair<Work, double>::first);
  if (found != known_.end()) return found->second;
  return known_.emplace_back(work, lower_bound(work, devices_, options_).value()).second;
}

double TilesBound::operator()(const StageWork& work, std::int64_t first, std::int64_t end, bool back) {
  std::unordered_map<std::int64_t, double> until;  // when each operation can be done
  double longest = 0;
  for (const model::Operation* op : operations_in_tiles(work, first, end, back)) {
    double at = 0;
    for (const OpId before : op->after) {
      if (const auto found = until.find(before.value); found != until.end()) at = std::max(at, found->second);
    }
    const bool on_devices = model::runs_on_devices(op->kind);
    at += on_devices ? bound_of(work_of(*op, work.wire)) : kernel_time(*op, options_.server).value();
    until[op->id.value] = at;
    longest = std::max(longest, at);
  }
  return longest;
}

}  // namespace cleave::plan::stages
