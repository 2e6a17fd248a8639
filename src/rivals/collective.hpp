// Collective exchanges within a group of devices: what they take, and what each member sends and receives.
//
// All messages of a phase are sent at once; a member's uplink and downlink carry them one after the other, and a phase
// ends one latency after the last byte.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cleave/sched/fleet.hpp"
#include "network.hpp"

namespace cleave::rivals {

struct CollectiveCost {
  double time_s = 0;
  std::vector<double> up_s, down_s;          ///< per member: links busy
  std::vector<double> bytes_up, bytes_down;  ///< per member
};

/// Ring all-reduce of `bytes` over the members in their order:
///   2 (g-1) steps, each of max_i hop(i, i+1, bytes/g); with equal links 2 (g-1)/g bytes/rate + 2 (g-1) latency.
/// Source: Patarasuk & Yuan 2009.
[[nodiscard]] CollectiveCost ring_all_reduce(const Network& network, std::span<const std::size_t> members,
                                             double bytes);

/// Sharded parameter server: every member keeps 1/g of the gradient; two phases (scatter-reduce, gather), in each of
/// which every member sends bytes/g to every other. Source: DT-FM's data-parallel cost, without its serialisation of
/// latencies.
[[nodiscard]] CollectiveCost sharded_exchange(const Network& network, std::span<const std::size_t> members,
                                              double bytes);

/// Two groups exchange gradients of the same `bytes`, such as those of a tied embedding on the first and the last
/// stage. Each group has reduced its own, so that a member has 1/g of it; it sends that to those members of the other
/// group that have the same elements, and receives theirs. The members of the result are `first`, then `last`. Example:
/// two members and one, 100 MB: each of the two sends and receives 50 MB, the one 100 MB. Requires: no common member.
[[nodiscard]] CollectiveCost exchange_between(const Network& network, std::span<const std::size_t> first,
                                              std::span<const std::size_t> last, double bytes);

/// So many exchanges, one after another.
[[nodiscard]] CollectiveCost scaled(CollectiveCost exchange, double times);

/// Adds what an exchange takes of its members' links to `usage`, which has an entry per device of the fleet.
void charge(const CollectiveCost& exchange, std::span<const std::size_t> members, std::span<sched::Usage> usage);
/// Charges exchange_between() and returns its time.
double charge_exchange_between(const Network& network, std::span<const std::size_t> first,
                               std::span<const std::size_t> last, double bytes, std::span<sched::Usage> usage);

}  // namespace cleave::rivals
