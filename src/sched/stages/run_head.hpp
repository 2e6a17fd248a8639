// HeadJoin: the server puts together what the parts of a head return. The maxima and sums of all parts make one
// softmax, so no part goes backward with a sequence before all of them have gone forward with it. dX of a chunk is the
// sum of the dX of all parts.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "cleave/model/graph.hpp"
#include "stages/run_state.hpp"

namespace cleave::sched::stages {

struct StageRun;

class HeadJoin {
 public:
  explicit HeadJoin(StageRun& run) : run_(run) {}

  void begin();

  /// A sequence has gone forward through a part.
  void forward_done(std::int64_t q);
  /// A chunk has gone backward through a part.
  void backward_done(const Purpose& purpose);

  /// Whether an operation is the kernel of the join: the gradient of the last norm, of one chunk.
  [[nodiscard]] bool is_kernel(OpId op) const;
  /// The first kernel that was started is done: its chunk goes on to the stage below.
  void kernel_done();
  /// The same for a step that was given up: nothing follows.
  void kernel_done_unused() { due_.pop_front(); }
  [[nodiscard]] bool is_busy() const { return !due_.empty(); }

  /// Whether all parts have gone forward with a sequence.
  [[nodiscard]] bool has_passed(std::int64_t q) const;
  /// Whether dX of a sequence is complete.
  [[nodiscard]] bool is_joined(std::int64_t q) const;

 private:
  [[nodiscard]] model::Operation kernel_of(std::int64_t q, std::int64_t chunk) const;

  StageRun& run_;
  OpId norm_;                                              // the kernel: gradient of the last norm
  std::vector<std::int32_t> joined_;                       // of each sequence: chunks whose kernel is done
  std::vector<std::int32_t> begun_;                        // of each sequence: chunks whose kernel was started
  std::deque<std::pair<std::int64_t, std::int64_t>> due_;  // sequence and chunk of kernels under way, in order
};

}  // namespace cleave::sched::stages
