// One tasklet's panels in their order.
#include "panel_stream.hpp"

#include <utility>

namespace cleave::device {

namespace {

// Of one tasklet, and cut from the same product.
bool continues(const comm::Header& first, const comm::Header& panel) {
  return panel.gemm == first.gemm && panel.wire == first.wire && panel.output == first.output &&
         panel.device == first.device && panel.b_by_columns == first.b_by_columns;
}

}  // namespace

PanelStream::Found PanelStream::take(const comm::Header& panel) {
  const bool known = first_ && first_->tasklet == panel.tasklet;
  if (panel.tasklet == given_up_ || (known && panel.panel.first < next_row_)) return Found::again;
  if (panel.panel.first == 0) {
    first_ = panel;
    next_row_ = 0;
  } else if (!known || panel.panel.first != next_row_ || !continues(*first_, panel)) {
    give_up(panel.tasklet);
    return Found::broken;
  }
  next_row_ += panel.panel.count;
  return Found::next;
}

void PanelStream::give_up(TaskletId tasklet) {
  given_up_ = tasklet;
  if (first_ && first_->tasklet == tasklet) {
    first_.reset();
    frame_.reset();
  }
}

std::shared_ptr<const comm::Frame> PanelStream::share(comm::Frame& frame, comm::TaskView& view) {
  const comm::PanelRows& rows = view.header.panel;
  if (rows.first == 0) {
    frame_ = std::make_shared<const comm::Frame>(std::move(frame));
    view_ = view;
  } else {
    view.operands[1] = view_.operands[1];
    view.column_exponents = view_.column_exponents;
  }
  return rows.end() == view.header.gemm.m ? std::move(frame_) : frame_;
}

}  // namespace cleave::device
