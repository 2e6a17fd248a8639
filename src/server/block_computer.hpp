// BlockComputer: blocks that the server computes itself, with the bits that a device would return.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "cleave/base/kept_memory.hpp"
#include "cleave/base/siphash.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/sched/fleet.hpp"
#include "scatter.hpp"
#include "workspace.hpp"

namespace cleave::server {

class BlockComputer {
 public:
  /// `work` must outlive it.
  explicit BlockComputer(Workspace& work) : work_(work) {}

  /// Computes a tasklet's block and puts it in its place, by `scatter` where it is a product's.
  /// Errors: CheckFailure for a product that is not finite.
  void compute(const sched::Tasklet& tasklet, Scatter& scatter);

  /// The digest of what the server computes for the tasklet; none where that is not finite.
  [[nodiscard]] std::optional<SipTag> digest(const sched::Tasklet& tasklet, const SipKey& key);

  /// Whether the block is finite in the type in which a device would return it.
  [[nodiscard]] bool can_compute(const sched::Tasklet& tasklet);

  /// Whether `result` is, bit for bit, what the server computes for the tasklet.
  [[nodiscard]] bool equals(const sched::Tasklet& tasklet, const comm::ResultView& result);

 private:
  struct ProductBlock {
    DType type;
    KeptVector<std::byte> bytes;
  };
  // A GEMM tasklet's block as a device would return it; none where it is not finite.
  std::optional<ProductBlock> multiply(const sched::Tasklet& tasklet);

  Workspace& work_;
};

}  // namespace cleave::server
