// How much of a tasklet each of its panels brings, computes and returns; the orders are derived in docs/cost_model.md.
#include "cleave/plan/panels.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cleave/base/error.hpp"
#include "cleave/plan/cost.hpp"
#include "gemm_costs.hpp"

namespace cleave::plan {

using timing::PanelSequence;

PanelSequence panel_sequence(const Work& work, const TaskletPlan& tasklet) {
  CLEAVE_ASSERT(tasklet.panels >= 1, "{} panels", tasklet.panels);
  if (work.kind != WorkKind::gemm || work.instances > 1) {
    // Runs of whole pairs, or of whole instances.
    const std::int64_t units = work.kind == WorkKind::gemm ? work.instances : tasklet.pairs.count();
    if (units == 0) return PanelSequence::runs(0, tasklet.panels, {});
    const Volume all = volume_of(work, tasklet);
    return PanelSequence::runs(
        units, tasklet.panels,
        {all.down.value() / units, all.up.value() / units, all.flops.value() / static_cast<double>(units)});
  }
  const GemmCosts costs = gemm_costs(work, tasklet.box);
  const std::int64_t m = tasklet.box.m(), n = tasklet.box.n(), k = tasklet.box.k();
  const std::int64_t strip = costs.strip_bytes, element = costs.result_bytes, panels = tasklet.panels;
  const auto flops_of = [](std::int64_t a, std::int64_t b) {
    return 2.0 * static_cast<double>(a) * static_cast<double>(b);
  };
  if (m == 0) return PanelSequence::runs(n, panels, {.down = strip});
  if (tasklet.columns_kept) return PanelSequence::runs(m, panels, {strip, element * n, flops_of(n, k)});
  switch (tasklet.order) {
    case PanelOrder::whole:
      return PanelSequence::runs(panels, panels, {strip * (m + n), element * m * n, flops_of(m * n, k)});
    case PanelOrder::row_resident: {
      const std::int64_t shorter = std::min(m, n);
      return PanelSequence::runs(std::max(m, n), panels, {strip, element * shorter, flops_of(shorter, k)},
                                 shorter * strip);
    }
    case PanelOrder::wavefront: return PanelSequence::wavefront(m, n, panels, strip, {0, element, flops_of(1, k)});
    case PanelOrder::result_resident: break;
  }
  return PanelSequence::result_resident(k, m * n, panels, (m + n) * strip, {0, element, flops_of(1, 1)});
}

std::vector<Panel> panels_of(const Work& work, const TaskletPlan& tasklet) {
  std::vector<Panel> panels;
  panels.reserve(static_cast<std::size_t>(tasklet.panels));
  for (PanelSequence sequence = panel_sequence(work, tasklet); sequence.made() < sequence.size();) {
    panels.push_back(sequence.next());
  }
  return panels;
}

}  // namespace cleave::plan
