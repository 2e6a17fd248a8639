// What an emulated device that lies is told to do to one block.
#pragma once

#include <cstdint>
#include <optional>

#include "cleave/comm/message.hpp"
#include "cleave/fleet/churn.hpp"
#include "cleave/sched/fleet.hpp"

namespace cleave::server {

struct LieOrder {
  comm::Lie lie = comm::Lie::none;
  std::uint32_t seed = 0;  ///< picks elements, bits and amounts
};

/// The order for a block of a device that lies as given; none for one that does not. Whether this block is among its
/// wrong ones, and what is wrong with it, follow from the tasklet alone; with LieKind::colluding from the place of the
/// block in its operation, so that every device that is given it errs alike.
[[nodiscard]] LieOrder order_lie(const std::optional<fleet::Lying>& lying, const sched::Tasklet& tasklet);

}  // namespace cleave::server
