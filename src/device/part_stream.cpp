// One tasklet's parts in their order.
#include "part_stream.hpp"

#include <utility>

#include "streamed_product.hpp"

namespace cleave::device {

namespace {

// Of one tasklet, and cut from the same block.
bool continues(const comm::Header& first, const comm::Header& part) {
  return part.part.of == first.part.of && part.work == first.work && part.gemm == first.gemm &&
         part.attention == first.attention && part.wire == first.wire && part.output == first.output &&
         part.device == first.device && part.b_by_columns == first.b_by_columns && part.columns == first.columns &&
         part.brought_by == first.brought_by;
}

}  // namespace

PartStream::Found PartStream::take(const comm::Header& part) {
  const bool known = first_ && first_->tasklet == part.tasklet;
  if (part.tasklet == given_up_ || (known && part.part.first < next_)) return Found::again;
  if (part.part.first == 0) {
    drop();
    first_ = part;
    next_ = 0;
  } else if (!known || part.part.first != next_ || !continues(*first_, part)) {
    give_up(part.tasklet);
    return Found::broken;
  }
  next_ += part.part.count;
  return Found::next;
}

void PartStream::give_up(TaskletId tasklet) {
  given_up_ = tasklet;
  if (first_ && first_->tasklet == tasklet) drop();
}

void PartStream::drop() {
  first_.reset();
  frame_.reset();
  product_.reset();
}

void PartStream::share(Job& job) {
  comm::TaskView& view = job.view;
  const comm::MessagePart& part = view.header.part;
  const bool ends = part.end() == view.header.part_units();
  if (part.of == comm::PartOf::k_blocks) {
    if (part.first == 0) product_ = std::make_shared<StreamedProduct>(view);
    job.product = ends ? std::move(product_) : product_;
  } else if (part.of == comm::PartOf::rows && view.header.columns == comm::Columns::along) {
    if (part.first == 0) {
      frame_ = std::make_shared<const comm::Frame>(std::move(job.frame));
      view_ = view;
    } else {
      view.operands[1] = view_.operands[1];
      view.column_exponents = view_.column_exponents;
    }
    job.first_part = ends ? std::move(frame_) : frame_;
  }
}

}  // namespace cleave::device
