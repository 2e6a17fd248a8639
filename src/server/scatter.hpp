// Scatter: puts blocks that were returned, or that the server computed, in their place in tensors.
//
// Invariant: what it puts there does not depend on who computed a block, in which order blocks came, or how the
// operation was cut (docs/numerics.md).
#pragma once

#include <span>

#include "cleave/comm/message.hpp"
#include "cleave/sched/fleet.hpp"
#include "workspace.hpp"

namespace cleave::server {

class Scatter {
 public:
  /// `work` must outlive it.
  explicit Scatter(Workspace& work) : work_(work) {}

  /// Whether a tasklet's block is added to what is there, rather than written: it is a partial sum, or its operation
  /// accumulates. Such a block cannot be taken back.
  [[nodiscard]] bool adds(const sched::Tasklet& tasklet) const;

  /// Puts a block in its place; false if it holds what no number of its type may be (NaN, infinities). A block that
  /// turns out wrong is computed again, and that result is written over it. Requires: not adds(tasklet).
  [[nodiscard]] bool write(const sched::Tasklet& tasklet, const comm::ResultView& result);

  /// Adds a GEMM's block, or writes it where its operation does not accumulate. Elements have type `type`.
  void add(const sched::Tasklet& tasklet, std::span<const std::byte> block, DType type);

  /// Turns the partial sums of an operation, if it has any, into its result. Requires: all of them are there.
  /// Errors: CheckFailure when the result is not finite.
  void finish(const model::Operation& op);

 private:
  // What a finished result is multiplied by: of a weight gradient, from what is sent to what it stands for.
  [[nodiscard]] float scale_of(const model::Operation& op) const;
  void add_to_sums(const model::Operation& op, const GemmBox& box, std::span<const std::byte> block, DType type);

  Workspace& work_;
};

}  // namespace cleave::server
