// Wrong results on order, for emulating devices that lie or break.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "cleave/comm/message.hpp"

namespace cleave::device {

/// Makes a result wrong in the way that `lie` says; which element, bit and amount follow from the seed alone, so that
/// devices given one seed err alike. Requires: lie is neither none nor stale.
void falsify(comm::ResultDraft& result, comm::Lie lie, std::uint32_t seed);

/// The liars of one rank.
class Liars {
 public:
  /// Makes the result of `task` wrong if the task says so. For Lie::stale, and for it alone, it remembers what was
  /// computed.
  void spoil(comm::ResultDraft& result, const comm::Header& task);

 private:
  using Block = std::tuple<DeviceId, OpId, comm::Work, std::vector<std::int64_t>>;
  std::map<Block, std::vector<std::vector<std::byte>>> last_;
};

}  // namespace cleave::device
