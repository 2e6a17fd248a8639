// See dependencies.hpp.
#include "dependencies.hpp"

#include <algorithm>

namespace cleave::model {

namespace {

bool overlap(const TensorView& a, const TensorView& b) {
  return a.row0 < b.row0 + b.rows && b.row0 < a.row0 + a.rows && a.col0 < b.col0 + b.cols && b.col0 < a.col0 + a.cols;
}

bool covers(const TensorView& outer, const TensorView& inner) {
  return outer.row0 <= inner.row0 && inner.row0 + inner.rows <= outer.row0 + outer.rows && outer.col0 <= inner.col0 &&
         inner.col0 + inner.cols <= outer.col0 + outer.cols;
}

}  // namespace

DependencyTracker::History& DependencyTracker::history(TensorId tensor) {
  const auto index = static_cast<std::size_t>(tensor.value);
  if (index >= tensors_.size()) tensors_.resize(index + 1);
  return tensors_[index];
}

std::vector<OpId> DependencyTracker::add(OpId op, const std::vector<TensorView>& in,
                                         const std::vector<TensorView>& out) {
  std::vector<OpId> after;
  const auto collect = [&after](const std::vector<Access>& accesses, const TensorView& view) {
    for (const Access& access : accesses) {
      if (overlap(access.view, view)) after.push_back(access.op);
    }
  };
  for (const TensorView& view : in) {
    if (view.valid()) collect(history(view.tensor).writes, view);
  }
  for (const TensorView& view : out) {
    if (!view.valid()) continue;
    collect(history(view.tensor).writes, view);
    collect(history(view.tensor).reads, view);
  }
  std::ranges::sort(after);
  after.erase(std::unique(after.begin(), after.end()), after.end());

  for (const TensorView& view : in) {
    if (view.valid()) history(view.tensor).reads.push_back({op, view});
  }
  for (const TensorView& view : out) {
    if (!view.valid()) continue;
    History& past = history(view.tensor);
    const auto covered = [&view](const Access& access) { return covers(view, access.view); };
    std::erase_if(past.writes, covered);
    std::erase_if(past.reads, covered);
    past.writes.push_back({op, view});
  }
  return after;
}

}  // namespace cleave::model
