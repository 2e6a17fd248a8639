// The registry of partitions: the one place that lists them.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cleave/base/error.hpp"
#include "partition.hpp"

// One line for each partition: its name in inputs, and what it does. partition_NAME(), in a file of its own, cuts.
#define CLEAVE_PARTITIONS(X)                              \
  X(auto, "three dimensions, by what each device can do") \
  X(equal, "row strips of equal size")                    \
  X(rows, "row strips by what each device can do")        \
  X(grid, "two dimensions, the depth is never cut")       \
  X(paper, "the published scheme")

namespace cleave::plan {

#define CLEAVE_DECLARE(name, help) std::vector<TaskletPlan> partition_##name(const Problem& problem);
CLEAVE_PARTITIONS(CLEAVE_DECLARE)
#undef CLEAVE_DECLARE

namespace {

struct Entry {
  Partition partition;
  std::string_view help;
  Scheme scheme;
};

#define CLEAVE_LIST(name, help) Entry{Partition(#name), help, partition_##name},
constexpr std::array kPartitions{CLEAVE_PARTITIONS(CLEAVE_LIST)};
#undef CLEAVE_LIST

}  // namespace

std::vector<std::pair<Partition, std::string_view>> all_partitions() {
  std::vector<std::pair<Partition, std::string_view>> all;
  for (const Entry& entry : kPartitions) all.emplace_back(entry.partition, entry.help);
  return all;
}

Scheme scheme_of(Partition partition) {
  const auto* found = std::ranges::find(kPartitions, partition, &Entry::partition);
  CLEAVE_ASSERT(found != kPartitions.end(), "no partition '{}'", partition.name());
  return found->scheme;
}

}  // namespace cleave::plan
