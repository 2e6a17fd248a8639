// `paper`: the published scheme, for comparison.
//
// Its cost model minimises T with  T >= (a_i + b_i) k / down_i,  T >= a_i b_i / up_i,  T >= 2 a_i b_i k / F_i  and
// sum a_i b_i = m n  over integers, by a commercial solver within 5 %. Here the same problem is solved exactly but for
// whole numbers: the best a_i, b_i at a given T are a square, so areas follow from T, and T from their sum. Memory,
// latency and the server's interface are not in it, and k is never cut. Areas alone do not tile, so they are laid out
// in columns whose widths and heights keep them. Source: Xue et al. 2025 (arXiv 2512.22142), and netsys-edinburgh/wasp.
#include <algorithm>
#include <cmath>
#include <limits>

#include "bisect.hpp"
#include "gemm_costs.hpp"
#include "partition.hpp"
#include "plane.hpp"
#include "power.hpp"

namespace cleave::plan {

namespace {

struct Share {
  double area = 0;
  std::size_t device = 0;
};

// What the published model knows of a device.
std::vector<DeviceState> as_published(std::span<const DeviceState> devices) {
  std::vector<DeviceState> known(devices.begin(), devices.end());
  for (DeviceState& device : known) {
    device.profile.latency = Seconds(0);
    device.profile.memory = Bytes(std::numeric_limits<std::int64_t>::max());
  }
  return known;
}

// Cuts [0, total) at running sums of `weights`.
std::vector<std::int64_t> cut_by(const std::vector<double>& weights, std::int64_t total) {
  double sum = 0, reached = 0;
  for (const double weight : weights) sum += weight;
  std::vector<std::int64_t> ends;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    reached += weights[i];
    ends.push_back(i + 1 == weights.size() ? total : std::llround(static_cast<double>(total) * reached / sum));
  }
  return ends;
}

}  // namespace

std::vector<TaskletPlan> partition_as_published(const Problem& problem) {
  const auto& [work, devices, options, bound] = problem;
  const TaskletPlan whole = whole_of(work);
  const std::vector<DeviceState> known = as_published(devices);
  PlanOptions unlimited = options;
  unlimited.server.nic_out = unlimited.server.nic_in = fleet::kUnlimitedRate;
  if (work.kind != WorkKind::gemm) return apportion_pairs(work, whole.pairs, known, unlimited);

  const GemmCosts costs = gemm_costs(work, whole.box);
  const std::vector<Power> powers = powers_of(known, unlimited.server, 0);
  const Plane plane{work.gemm.m,
                    work.gemm.n,
                    static_cast<double>(work.gemm.k * costs.element_bytes),
                    static_cast<double>(costs.result_bytes),
                    2.0 * static_cast<double>(work.gemm.k),
                    static_cast<double>(costs.cell_bytes)};
  const double finish = area_finish(plane, powers, 1.0);
  std::vector<Share> shares;
  double sides = 0;
  for (const Power& power : powers) {
    const double area = largest_area(plane, reach_of(plane, power.by(finish)));
    if (area < 1) continue;
    shares.push_back({area, static_cast<std::size_t>(power.index)});
    sides += std::sqrt(area);
  }
  if (shares.empty()) shares.push_back({1, 0});
  std::sort(shares.begin(), shares.end(),
            [](const Share& a, const Share& b) { return a.area != b.area ? a.area > b.area : a.device < b.device; });

  const auto most = static_cast<double>(std::min<std::int64_t>(work.gemm.n, std::ssize(shares)));
  const auto count =
      static_cast<std::size_t>(std::clamp(std::round(sides / static_cast<double>(work.gemm.m)), 1.0, most));
  std::vector<std::vector<Share>> columns(count);
  std::vector<double> widths(count, 0);
  double reached = 0;
  std::size_t j = 0;
  for (const Share& share : shares) {
    const double side = std::sqrt(share.area);
    if (j + 1 < count && !columns[j].empty() &&
        reached + side / 2 > sides * static_cast<double>(j + 1) / static_cast<double>(count)) {
      ++j;
    }
    columns[j].push_back(share);
    widths[j] += share.area;
    reached += side;
  }
  columns.resize(j + 1);
  widths.resize(j + 1);

  std::vector<TaskletPlan> pieces;
  const std::vector<std::int64_t> n_ends = cut_by(widths, work.gemm.n);
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const std::int64_t n0 = c == 0 ? 0 : n_ends[c - 1];
    if (n_ends[c] == n0) continue;
    std::vector<double> heights;
    for (const Share& share : columns[c]) heights.push_back(share.area);
    const std::vector<std::int64_t> m_ends = cut_by(heights, work.gemm.m);
    for (std::size_t i = 0; i < columns[c].size(); ++i) {
      const std::int64_t m0 = i == 0 ? 0 : m_ends[i - 1];
      if (m_ends[i] == m0) continue;
      TaskletPlan piece = whole;
      piece.device = devices[columns[c][i].device].profile.id;
      piece.box = {m0, m_ends[i], n0, n_ends[c], 0, work.gemm.k};
      pieces.push_back(piece);
    }
  }
  return pieces;
}

}  // namespace cleave::plan
