// Wrong results on order, for emulating devices that lie or break.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "cleave/comm/message.hpp"

namespace cleave::device {

/// Makes a result wrong in the way that `fault` says; which element, bit and amount follow from the seed alone, so that
/// devices given one seed err alike. Requires: fault is neither none, stale nor other.
void inject_fault(comm::ResultDraft& result, comm::InjectedFault fault, std::uint32_t seed);

/// The devices of one rank that return wrong results when a task tells them to.
class FaultInjector {
 public:
  /// Makes the result of `task` wrong if the task says so. For InjectedFault::stale and InjectedFault::other, and for
  /// them alone, it remembers what was computed.
  void inject(comm::ResultDraft& result, const comm::Header& task);

 private:
  using Block = std::tuple<DeviceId, OpId, comm::Work, std::vector<std::int64_t>>;
  std::map<Block, std::vector<std::vector<std::byte>>> last_;
};

}  // namespace cleave::device
