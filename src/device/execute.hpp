// The work of one tasklet: operands in, result out, with the kernels that every rank uses.
#pragma once

#include <variant>
#include <vector>

#include "cleave/base/units.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/kernels/parallel.hpp"
#include "cleave/kernels/token_sums.hpp"

namespace cleave::device {

/// Memory that a task takes on its device, by the formula that the planner obeys; of a panel of K blocks, what the
/// whole product takes that comes in such panels. Requires: a decoded task.
[[nodiscard]] Bytes resident_bytes(const comm::Header& task);

/// Tokens that a product's block sums over; of no sequence where its header says that it does not.
[[nodiscard]] kernels::TokenRun tokens_of(const comm::Header& task);
/// Makes a draft one with partial sums of this type; false: they fit no frame.
[[nodiscard]] bool make_room(comm::ResultDraft& draft, DType type);

/// Buffers for operands and results that are not fp32 on the wire; kept from tasklet to tasklet.
struct Scratch {
  std::vector<float> a, b, c;
};

/// Computes a task into a result that is filled but not sealed; Reason::non_finite where operands or results are not
/// finite or exceed their exponents, Reason::memory where partial sums in 64 bits fit no frame. The result has the same
/// bits on every device. Errors: EnvironmentError, bad_alloc.
[[nodiscard]] std::variant<comm::ResultDraft, comm::Reason> execute(const comm::TaskView& task,
                                                                    kernels::Parallel& parallel, Scratch& scratch);

}  // namespace cleave::device
