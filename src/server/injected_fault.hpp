// What an emulated device is told to do to one block.
#pragma once

#include <cstdint>
#include <optional>

#include "cleave/comm/message.hpp"
#include "cleave/fleet/churn.hpp"
#include "cleave/sched/fleet.hpp"

namespace cleave::server {

struct FaultOrder {
  comm::InjectedFault fault = comm::InjectedFault::none;
  std::uint32_t seed = 0;  ///< picks elements, bits and amounts
};

/// The order for a block of a device that injects `faults`; none for a device that has none. Whether this block is
/// among its wrong ones, and what is wrong with it, follow from the tasklet alone; with InjectedFaultKind::colluding
/// from the place of the block in its operation, so that every device that is given it errs alike. Who is to return a
/// digest lies in it likewise. In a step of stages those who collude err in the first answers of visits.
[[nodiscard]] FaultOrder order_fault(const std::optional<fleet::InjectedFaults>& faults, const sched::Tasklet& tasklet);

}  // namespace cleave::server
