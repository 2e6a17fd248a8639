// Identities: small integers that must not be confused with each other or with counts.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace cleave {

/// An identity of one kind. Ids of different kinds do not convert into each other. Negative: no identity.
template <class Tag>
struct Id {
  std::int64_t value = -1;

  constexpr Id() = default;
  constexpr explicit Id(std::int64_t v) : value(v) {}
  constexpr auto operator<=>(const Id&) const = default;
  [[nodiscard]] constexpr bool valid() const { return value >= 0; }
};

using DeviceId = Id<struct DeviceIdTag>;    ///< index of an emulated device in its fleet, 0-based
using TaskletId = Id<struct TaskletIdTag>;  ///< one submission of a block to a device; never used twice in a run
using OpId = Id<struct OpIdTag>;            ///< index of an operation in its StepGraph
using TensorId = Id<struct TensorIdTag>;    ///< index of a tensor in its StepGraph

/// The device id under which the server computes blocks itself when no device can.
inline constexpr DeviceId kServerDevice{std::int64_t{1} << 40};

/// In stages, for which owner's gradient sums a replica keeps the operands of a backward pass: an owner's number
/// (0, 1, ...), all owners of the stage on the replica's device, or none.
inline constexpr std::int32_t kForAllOwners = -1, kForNoOwner = -2;

}  // namespace cleave

template <class Tag>
struct std::hash<cleave::Id<Tag>> {
  std::size_t operator()(cleave::Id<Tag> id) const noexcept { return std::hash<std::int64_t>{}(id.value); }
};
