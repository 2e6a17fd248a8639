// HeadJoin: where the parts of a head meet. The server puts together what they return. Maxima and sums of all parts
// make one softmax, so no part goes backward before all of them have gone forward; the dX of a chunk is the sum of what
// all parts return.
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

  [[nodiscard]] bool is_kernel(OpId op) const;
  void kernel_done();
  /// One is done, and nothing follows from it.
  void kernel_done_unused() { due_.pop_front(); }
  [[nodiscard]] bool is_busy() const { return !due_.empty(); }

  /// All parts have gone forward with a sequence.
  [[nodiscard]] bool has_passed(std::int64_t q) const;
  /// Its dX is complete.
  [[nodiscard]] bool is_joined(std::int64_t q) const;

 private:
  [[nodiscard]] model::Operation kernel_of(std::int64_t q, std::int64_t chunk) const;

  StageRun& run_;
  OpId norm_;                                              // the kernel: gradient of the last norm
  std::vector<std::int32_t> joined_;                       // of each sequence: chunks whose dX is there
  std::vector<std::int32_t> begun_;                        // of each sequence: chunks that were given to the kernel
  std::deque<std::pair<std::int64_t, std::int64_t>> due_;  // sequences and chunks that the kernel works on, in order
};

}  // namespace cleave::sched::stages
