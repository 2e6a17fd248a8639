// The registry of partition schemes: the one place that lists them.
#include "partition.hpp"

namespace cleave::plan {

Scheme scheme_of(Partition partition) {
  switch (partition) {
    case Partition::automatic: return partition_automatically;
    case Partition::equal: return partition_equally;
    case Partition::rows: return partition_rows;
    case Partition::grid: return partition_grid;
    case Partition::paper: return partition_as_published;
  }
  return partition_grid;
}

}  // namespace cleave::plan
