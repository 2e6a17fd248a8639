// How much of a stream each of its panels brings, computes and returns; the orders are derived in docs/cost_model.md.
#include "cleave/timing/panels.hpp"

#include <fmt/format.h>

#include "cleave/base/error.hpp"
#include "cleave/base/shapes.hpp"

namespace cleave::timing {

PanelSequence PanelSequence::runs(std::int64_t units, std::int64_t panels, Unit unit, std::int64_t first_down) {
  CLEAVE_ASSERT(panels >= 1, "{} panels", panels);
  PanelSequence sequence;
  sequence.size_ = panels;
  sequence.units_ = Chunks(units, panels);
  sequence.down_ = unit.down;
  sequence.up_ = unit.up;
  sequence.flops_ = unit.flops;
  sequence.extra_ = first_down;
  return sequence;
}

PanelSequence PanelSequence::wavefront(std::int64_t rows, std::int64_t columns, std::int64_t panels,
                                       std::int64_t strip_down, Unit element) {
  PanelSequence sequence = runs(rows, panels, {strip_down, element.up, element.flops});
  sequence.form_ = Form::wavefront;
  sequence.others_ = Chunks(columns, panels);
  return sequence;
}

PanelSequence PanelSequence::result_resident(std::int64_t depth, std::int64_t elements, std::int64_t panels,
                                             std::int64_t down, Unit element) {
  CLEAVE_ASSERT(panels >= 1, "{} panels", panels);
  PanelSequence sequence;
  sequence.form_ = Form::result_resident;
  sequence.size_ = panels;
  sequence.downs_ = result_resident_down(panels);
  sequence.units_ = Chunks(down, sequence.downs_);
  sequence.others_ = Chunks(k_blocks(depth), sequence.downs_);
  sequence.results_ = Chunks(elements, panels - (sequence.downs_ - 1));
  sequence.up_ = element.up;
  sequence.flops_ = element.flops * static_cast<double>(elements);
  sequence.depth_ = depth;
  return sequence;
}

PanelSequence PanelSequence::alike(const PanelRun& run) {
  CLEAVE_ASSERT(run.panels >= 1, "{} panels", run.panels);
  PanelSequence sequence;
  sequence.form_ = Form::alike;
  sequence.size_ = run.panels;
  sequence.down_ = run.each.down.value();
  sequence.up_ = run.each.up.value();
  sequence.extra_ = run.last_up.value();
  sequence.flops_ = run.each.flops.value();
  return sequence;
}

void PanelSequence::answer_with(std::int64_t payload) {
  CLEAVE_ASSERT(made_ == 0, "{} panels were made", made_);
  answer_ = payload;
  if (form_ == Form::result_resident) size_ = downs_;  // those that only return results have nothing to do
}

Panel PanelSequence::last() const {
  Panel panel = last_whole();
  if (answer_ < 0) return panel;
  panel.up = message_bytes(answer_);
  if (form_ == Form::result_resident) {
    const std::int64_t before = std::min(depth_, kBlockK * (others_.total() - others_.last()));
    panel.flops = Flops(static_cast<double>(depth_ - before) * flops_);
  }
  return panel;
}

Panel PanelSequence::last_whole() const {
  if (form_ == Form::alike) return {Bytes(0), Flops(flops_), Bytes(up_ + extra_)};
  if (form_ == Form::result_resident) return {Bytes(0), Flops(0), message_bytes(results_.last() * up_)};
  std::int64_t units = units_.last();
  if (form_ == Form::wavefront) {
    const std::int64_t rows = units_.total(), columns = others_.total();
    units = rows * columns - (rows - units) * (columns - others_.last());
  }
  return {Bytes(0), Flops(static_cast<double>(units) * flops_), message_bytes(units * up_)};
}

void tails_of(std::span<const Panel> panels, const fleet::DeviceProfile& device, std::vector<Tail>& tails) {
  tails.resize(panels.size());
  Tail next;
  for (std::size_t i = panels.size(); i-- > 0;) {
    const Panel& panel = panels[i];
    next.up += panel.up / device.uplink;
    const Seconds back = 2 * device.latency + panel.flops / device.compute + next.up;
    next.down = panel.down / device.downlink + std::max(next.down, back);
    tails[i] = next;
  }
}

}  // namespace cleave::timing
