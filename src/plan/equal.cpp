// `equal`: row strips (or pairs) of equal size over all devices, whatever they are. The baseline of everything.
#include "partition.hpp"

namespace cleave::plan {

std::vector<TaskletPlan> partition_equal(const Problem& problem) {
  const Work& work = problem.work;
  const std::span<const DeviceState> devices = problem.devices;
  const TaskletPlan whole = whole_of(work);
  const bool gemm = work.kind == WorkKind::gemm;
  const std::int64_t total = gemm ? work.gemm.m : work.attention.pairs();
  const std::int64_t count = std::ssize(devices);
  std::vector<TaskletPlan> pieces;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = total * i / count, end = total * (i + 1) / count;
    if (begin == end) continue;
    TaskletPlan piece = whole;
    piece.device = devices[static_cast<std::size_t>(i)].profile.id;
    if (gemm) {
      piece.box.m0 = begin;
      piece.box.m1 = end;
    } else {
      piece.pairs = {begin, end};
    }
    pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace cleave::plan
