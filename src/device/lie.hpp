// Wrong results on order, for emulating devices that lie or break.
#pragma once

#include "cleave/comm/message.hpp"

namespace cleave::device {

/// Makes a result wrong in the way that the task asks for; which element, bit and amount follow from the seed alone, so
/// that devices given one seed err alike. Lie::none leaves it as it is.
void falsify(comm::ResultDraft& result, comm::Lie lie, std::uint32_t seed);

}  // namespace cleave::device
