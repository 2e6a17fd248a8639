// Gather: makes the task messages of tasklets out of the operands that the server keeps.
//
// Operands travel as they are stored: the device's kernel packs them either way, a transposition here would be one more
// pass. A rank of this host may be told where they are instead of being sent them. Blocks that are to be checked are
// looked at on the way, while their operands pass through the cache.
#pragma once

#include <span>
#include <vector>

#include "cleave/comm/message.hpp"
#include "cleave/comm/transport.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/server/session.hpp"
#include "injected_fault.hpp"
#include "verifier.hpp"
#include "workspace.hpp"

namespace cleave::server {

/// The rank that a message is for: it may be able to read operands where they lie.
struct Reader {
  const comm::Transport* transport = nullptr;  ///< null: it is sent everything
  int rank = -1;
};

class Gather {
 public:
  /// Both must outlive it.
  Gather(Workspace& work, Verifier& verifier, const PartLimits& limits)
      : work_(work), verifier_(verifier), limits_(limits) {}

  /// The task message of a tasklet, or of one part of it, for `reader`, to be answered as `fault` says.
  /// Requires: parts of a tasklet in order. Errors: CheckFailure when an operand is not finite.
  [[nodiscard]] comm::Frame message(const sched::Tasklet& tasklet, const comm::MessagePart& part,
                                    const FaultOrder& fault, const Reader& reader);

  /// The first of the parts in which a tasklet travels to another host, to a device that has `room` for it; none: it
  /// travels in one message.
  [[nodiscard]] comm::MessagePart first_part(const sched::Tasklet& tasklet, Bytes room);

 private:
  // Where a rank finds the operands of a tasklet, matrix by matrix; none where it must be sent them. Valid until it is
  // called again.
  [[nodiscard]] std::span<const comm::OperandPlace> places_of(const sched::Tasklet& tasklet, const Reader& reader);
  // The message of a tasklet that only brings columns of B, with their exponents.
  [[nodiscard]] comm::Frame columns_message(const sched::Tasklet& tasklet);
  // Puts the operands of a GEMM tasklet, or what a part brings of them, into its message, each by rows or by columns,
  // as it is stored, and, where the block is to be checked, into a check.
  void gather_gemm(const sched::Tasklet& tasklet, kernels::ConstMatrix a, kernels::ConstMatrix b,
                   comm::TaskDraft& draft);
  void gather_attention(const sched::Tasklet& tasklet, comm::TaskDraft& draft);

  Workspace& work_;
  Verifier& verifier_;
  PartLimits limits_;
  std::vector<comm::OperandPlace> places_;
};

}  // namespace cleave::server
