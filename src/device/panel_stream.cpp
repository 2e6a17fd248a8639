// One tasklet's panels in their order.
#include "panel_stream.hpp"

#include <utility>

#include "streamed_product.hpp"

namespace cleave::device {

namespace {

// Of one tasklet, and cut from the same block.
bool continues(const comm::Header& first, const comm::Header& panel) {
  return panel.panel.of == first.panel.of && panel.work == first.work && panel.gemm == first.gemm &&
         panel.attention == first.attention && panel.wire == first.wire && panel.output == first.output &&
         panel.device == first.device && panel.b_by_columns == first.b_by_columns && panel.columns == first.columns &&
         panel.brought_by == first.brought_by;
}

}  // namespace

PanelStream::Found PanelStream::take(const comm::Header& panel) {
  const bool known = first_ && first_->tasklet == panel.tasklet;
  if (panel.tasklet == given_up_ || (known && panel.panel.first < next_)) return Found::again;
  if (panel.panel.first == 0) {
    drop();
    first_ = panel;
    next_ = 0;
  } else if (!known || panel.panel.first != next_ || !continues(*first_, panel)) {
    give_up(panel.tasklet);
    return Found::broken;
  }
  next_ += panel.panel.count;
  return Found::next;
}

void PanelStream::give_up(TaskletId tasklet) {
  given_up_ = tasklet;
  if (first_ && first_->tasklet == tasklet) drop();
}

void PanelStream::drop() {
  first_.reset();
  frame_.reset();
  product_.reset();
}

void PanelStream::share(Job& job) {
  comm::TaskView& view = job.view;
  const comm::Panel& panel = view.header.panel;
  const bool ends = panel.end() == view.header.panel_units();
  if (panel.of == comm::PanelOf::k_blocks) {
    if (panel.first == 0) product_ = std::make_shared<StreamedProduct>(view);
    job.product = ends ? std::move(product_) : product_;
  } else if (panel.of == comm::PanelOf::rows && view.header.columns == comm::Columns::along) {
    if (panel.first == 0) {
      frame_ = std::make_shared<const comm::Frame>(std::move(job.frame));
      view_ = view;
    } else {
      view.operands[1] = view_.operands[1];
      view.column_exponents = view_.column_exponents;
    }
    job.first_panel = ends ? std::move(frame_) : frame_;
  }
}

}  // namespace cleave::device
