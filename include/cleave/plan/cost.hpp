// The cost model of one tasklet (docs/cost_model.md): bytes, FLOP, memory, panels and time. Pure functions.
//
// Every message pays kMessageHeader bytes and one latency. GEMM operands travel in the wire type; each row of A and
// column of B of a GEMM with more than one K block also brings its 2-byte norm exponent. A tasklet that covers the
// whole depth returns the finished result in the wire type; one that covers a run of K blocks returns partial sums.
#pragma once

#include <vector>

#include "cleave/plan/panels.hpp"
#include "cleave/plan/plan.hpp"

namespace cleave::plan {

/// A message, header and payload, stays below this: sizes of MPI messages are 32-bit, and buffers are finite.
inline constexpr Bytes kMaxMessage{std::int64_t{1} << 30};

/// The server's time for an operation that it computes itself: max(FLOP / rate, traffic / memory bandwidth).
[[nodiscard]] Seconds kernel_time(const model::Operation& kernel, const fleet::ServerProfile& server);

/// Payload bytes, without headers, and FLOP.
struct Volume {
  Bytes down, up;
  Flops flops;
};

/// The volume of a part of the work: `box` or `pairs` of `piece`; nothing else of it is read but columns_kept.
[[nodiscard]] Volume volume_of(const Work& work, const TaskletPlan& piece);
/// The volume of the whole work as one tasklet: every operand down and every result up once.
[[nodiscard]] Volume volume_of(const Work& work);

/// Memory that a tasklet takes on the device at once: strips, panels in flight, accumulators, result.
[[nodiscard]] Bytes resident_bytes(const Work& work, const TaskletPlan& tasklet);

/// Finish time of a stream of panels on a device, alone on the server's interface:
///   d_i = d_(i-1) + down_i / downlink,  c_i = max(d_i + latency, c_(i-1)) + flops_i / compute,
///   u_i = max(c_i, u_(i-1)) + up_i / uplink;  finish = u_last + latency.
/// d, c and u begin with the times for which the device's resources are busy. Rates of links are capped by the server's
/// interface.
[[nodiscard]] Seconds stream_time(std::span<const Panel> panels, const DeviceState& device,
                                  const fleet::ServerProfile& server);

/// Fills the cost fields (bytes, resident, time) of a tasklet whose other fields are set.
void estimate_cost(const Work& work, TaskletPlan& tasklet, const DeviceState& device, const PlanOptions& options);

}  // namespace cleave::plan
