// Choosing panels.
//
// More panels overlap better, and each pays a header. So there are as many as keep headers below a small share of the
// tasklet's time; more only where memory or the limit on a message asks for it. Then the orders are compared by the
// time of their streams: the wavefront lets results leave early; a resident strip takes less memory and ends with a
// shorter last panel; a resident result needs no strip in memory at all, but leaves last.
#include "order.hpp"

#include <algorithm>
#include <cmath>

#include "cleave/plan/cost.hpp"

namespace cleave::plan {

namespace {

/// Headers may take this share of the time of the busiest resource; more in an operation alone.
constexpr double kHeaderShare = 0.005, kHeaderShareAlone = 0.02;

/// Panels each way of a tasklet that gives way to others, at most.
constexpr std::int64_t kMostYielding = 1024;

// The most panels that an order can have.
std::int64_t most_panels(const Work& work, const TaskletPlan& piece, PanelOrder order, bool yielding) {
  if (work.kind != WorkKind::gemm) return piece.pairs.count();
  if (work.instances > 1) return work.instances;
  switch (order) {
    case PanelOrder::whole: return 1;
    case PanelOrder::wavefront: return std::max(piece.box.m(), piece.box.n());
    case PanelOrder::row_resident: return piece.columns_kept ? piece.box.m() : std::max(piece.box.m(), piece.box.n());
    case PanelOrder::result_resident:
      // So many down, where a link must be free again soon even parts of a K block, and nearly as many up.
      return std::max<std::int64_t>(1, 2 * std::max(k_blocks(piece.box.k()), yielding ? kMostYielding : 0) - 1);
  }
  return 1;
}

// Panels with the result resident of which none takes a link for longer than `longest`.
std::int64_t yielding_panels(const Work& work, const TaskletPlan& piece, const DeviceState& device, Seconds longest) {
  const Volume volume = volume_of(work, piece);
  const double busiest =
      std::max((volume.down / device.profile.downlink).value(), (volume.up / device.profile.uplink).value());
  return 2 * static_cast<std::int64_t>(std::min(std::ceil(busiest / longest.value()), 1e6)) + 1;
}

// Seconds for which a tasklet takes its busiest resource.
double busiest_of(const Work& work, const TaskletPlan& piece, const fleet::DeviceProfile& profile) {
  const Volume volume = volume_of(work, piece);
  return std::max({(volume.down / profile.downlink).value(), (volume.flops / profile.compute).value(),
                   (volume.up / profile.uplink).value()});
}

}  // namespace

std::int64_t affordable_panels(double busiest, const fleet::DeviceProfile& profile, const PlanOptions& options) {
  const double header =
      std::max((kMessageHeader / profile.downlink).value(), (kMessageHeader / profile.uplink).value());
  // Alone, what the steps of the wavefront cost is time of the operation.
  const bool alone = options.objective == Objective::alone;
  const std::int64_t most = alone ? 4 * options.most_panels : options.most_panels;
  const double share = alone ? kHeaderShareAlone : kHeaderShare;
  const double count = header > 0 ? share * busiest / header : static_cast<double>(most);
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::min(count, 1e9)), 1, most);
}

bool messages_fit(std::span<const Panel> panels, const PlanOptions& options) {
  Bytes down{0}, up{0};
  for (const Panel& panel : panels) {
    if (panel.down >= kMaxMessage || panel.up >= kMaxMessage) return false;
    down += panel.down;
    up += panel.up;
  }
  return !options.single_message || (down < kMaxMessage && up < kMaxMessage);
}

bool choose_order(const Work& work, TaskletPlan& piece, const DeviceState& device, const PlanOptions& options) {
  const bool yielding =
      std::isfinite(options.longest_panel.value()) && work.kind == WorkKind::gemm && work.instances == 1;
  const std::int64_t wanted = yielding
                                  ? yielding_panels(work, piece, device, options.longest_panel)
                                  : affordable_panels(busiest_of(work, piece, device.profile), device.profile, options);
  TaskletPlan best = piece;
  Seconds best_time{std::numeric_limits<double>::infinity()};
  const auto consider = [&](PanelOrder order) {
    TaskletPlan candidate = piece;
    candidate.order = order;
    const std::int64_t most = most_panels(work, piece, order, yielding);
    for (candidate.panels = std::min(wanted, most);; candidate.panels = std::min(most, candidate.panels * 2)) {
      if (resident_bytes(work, candidate) <= device.profile.memory) {
        const std::vector<Panel> panels = panels_of(work, candidate);
        if (messages_fit(panels, options)) {
          const Seconds time = stream_time(panels, device, options.server);
          if (time < best_time) {
            best = candidate;
            best_time = time;
          }
          return;
        }
      }
      if (candidate.panels >= most) return;
    }
  };
  if (work.kind != WorkKind::gemm) {
    consider(PanelOrder::row_resident);
  } else if (piece.columns_kept || piece.box.m() == 0) {
    consider(PanelOrder::row_resident);
  } else if (work.instances > 1) {
    consider(PanelOrder::whole);
  } else if (yielding) {
    consider(PanelOrder::result_resident);
  } else {
    consider(PanelOrder::wavefront);
    consider(PanelOrder::row_resident);
    if (best_time.value() == std::numeric_limits<double>::infinity()) consider(PanelOrder::result_resident);
  }
  if (best_time.value() == std::numeric_limits<double>::infinity()) return false;
  piece = best;
  if (piece.panels == 1) piece.order = PanelOrder::whole;
  return true;
}

}  // namespace cleave::plan
