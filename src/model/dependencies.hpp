// Derives the edges of the DAG from what operations read and write.
//
// Two operations are ordered when they touch overlapping rectangles of one tensor and one of them writes: read after
// write, write after write, write after read. GraphBuilder tells of every operation in serial order and gets its
// predecessors back.
//
// Example: a writes columns [0,8) of T, b reads [0,4), c writes [0,8): b comes after a, c after a and b. After c, only
// c is remembered: its rectangle covers theirs, so whoever conflicts with them conflicts with c, which waits for them.
#pragma once

#include <vector>

#include "cleave/model/graph.hpp"

namespace cleave::model {

class DependencyTracker {
 public:
  /// The operations that `op` must wait for, in rising order without duplicates; remembers what `op` touches.
  /// An output counts as read and written. Invalid views are skipped.
  [[nodiscard]] std::vector<OpId> add(OpId op, const std::vector<TensorView>& in, const std::vector<TensorView>& out);

 private:
  struct Access {
    OpId op;
    TensorView view;
  };
  struct History {
    std::vector<Access> writes, reads;  // those not covered by a later write
  };
  History& history(TensorId tensor);

  std::vector<History> tensors_;
};

}  // namespace cleave::model
