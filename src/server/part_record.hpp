// Who delivered blocks that the server did not look at, by step, and its text in a checkpoint
// (docs/checkpoint_format.md): a process that goes on knows what the ones before knew.
//
// Devices are named by what outlives a process: their number in the fleet and the name that the input gives them. A
// record of a fleet in which a number has another name tells nothing of single devices: then every device counts as one
// that had a part in its steps.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "cleave/base/ids.hpp"
#include "cleave/fleet/profile.hpp"

namespace cleave::server {

struct PartRecord {
  std::map<std::int64_t, std::set<DeviceId>> steps;  ///< who, in each of the last steps
  std::set<DeviceId> earlier;                        ///< who, in steps before those
  bool unknown_before = false;                       ///< steps of which nothing is known came before those
  bool operator==(const PartRecord&) const = default;
};

/// One JSON object; a few dozen bytes where the same devices have parts in all steps.
[[nodiscard]] std::string to_text(const PartRecord& record, std::span<const fleet::DeviceProfile> fleet);

/// The record in `text`, for `fleet`: steps from `first` to before `next`; what it has of earlier ones counts to
/// `earlier`. Empty: there is none, or it is of a form that this program does not know.
[[nodiscard]] std::optional<PartRecord> read_part_record(const std::string& text,
                                                         std::span<const fleet::DeviceProfile> fleet,
                                                         std::int64_t first, std::int64_t next);

}  // namespace cleave::server
