// How much of a tasklet each of its panels brings, computes and returns; the orders are derived in docs/cost_model.md.
#include "cleave/plan/panels.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cleave/base/error.hpp"
#include "cleave/base/resident.hpp"
#include "cleave/plan/cost.hpp"
#include "gemm_costs.hpp"

namespace cleave::plan {

PanelSequence::PanelSequence(const Work& work, const TaskletPlan& tasklet) : size_(tasklet.panels) {
  CLEAVE_ASSERT(tasklet.panels >= 1, "{} panels", tasklet.panels);
  if (work.kind != WorkKind::gemm || work.instances > 1) {
    // Runs of whole pairs, or of whole instances.
    const std::int64_t units = work.kind == WorkKind::gemm ? work.instances : tasklet.pairs.count();
    const Volume all = volume_of(work, tasklet);
    units_ = Chunks(units, size_);
    if (units == 0) return;
    down_ = all.down.value() / units;
    up_ = all.up.value() / units;
    flops_ = all.flops.value() / static_cast<double>(units);
    return;
  }
  const GemmCosts costs = gemm_costs(work, tasklet.box);
  const std::int64_t m = tasklet.box.m(), n = tasklet.box.n(), k = tasklet.box.k();
  const auto flops_of = [](std::int64_t a, std::int64_t b) {
    return 2.0 * static_cast<double>(a) * static_cast<double>(b);
  };
  down_ = costs.strip_bytes;
  up_ = costs.result_bytes;
  if (m == 0) {
    units_ = Chunks(n, size_);
    up_ = 0;
  } else if (tasklet.columns_kept) {
    units_ = Chunks(m, size_);
    flops_ = flops_of(n, k);
    up_ *= n;
  } else if (tasklet.order == PanelOrder::whole) {
    units_ = Chunks(size_, size_);
    down_ *= m + n;
    flops_ = flops_of(m * n, k);
    up_ *= m * n;
  } else if (tasklet.order == PanelOrder::row_resident) {
    const std::int64_t shorter = std::min(m, n);
    units_ = Chunks(std::max(m, n), size_);
    first_down_ = shorter * down_;
    flops_ = flops_of(shorter, k);
    up_ *= shorter;
  } else if (tasklet.order == PanelOrder::wavefront) {
    form_ = Form::wavefront;
    units_ = Chunks(m, size_);
    others_ = Chunks(n, size_);
    flops_ = flops_of(1, k);
  } else {
    form_ = Form::result_resident;
    downs_ = result_resident_down(size_);
    units_ = Chunks((m + n) * down_, downs_);
    others_ = Chunks(k_blocks(k), downs_);
    results_ = Chunks(m * n, size_ - (downs_ - 1));
    depth_ = k;
    flops_ = flops_of(m, n);
  }
}

Panel PanelSequence::last() const {
  if (form_ == Form::alike) return {Bytes(0), Flops(flops_), Bytes(up_ + first_down_)};
  if (form_ == Form::result_resident) return {Bytes(0), Flops(0), message(results_.last() * up_)};
  std::int64_t units = units_.last();
  if (form_ == Form::wavefront) {
    const std::int64_t rows = units_.total(), columns = others_.total();
    units = rows * columns - (rows - units) * (columns - others_.last());
  }
  return {Bytes(0), Flops(static_cast<double>(units) * flops_), message(units * up_)};
}

std::vector<Panel> panels_of(const Work& work, const TaskletPlan& tasklet) {
  std::vector<Panel> panels;
  panels_of(work, tasklet, panels);
  return panels;
}

void panels_of(const Work& work, const TaskletPlan& tasklet, std::vector<Panel>& panels) {
  panels_of(PanelSequence(work, tasklet), panels);
}

void panels_of(PanelSequence sequence, std::vector<Panel>& panels) {
  panels.clear();
  panels.reserve(static_cast<std::size_t>(sequence.size()));
  while (sequence.made() < sequence.size()) panels.push_back(sequence.next());
}

}  // namespace cleave::plan
