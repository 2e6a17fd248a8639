// ReplicaGrid: positions x replicas. What pipelines with data parallelism, tensor and data parallelism share.
//
// Every replica holds the whole model over its positions (stages, shards; one position where a device holds it all) and
// takes a share of the batch. So the devices of one position are copies of each other, and that is what a loss lives
// by: the replicas that lost a device are dissolved, new ones are formed of their remaining devices where every
// position can be filled, and the batch is shared anew. What intact replicas had done of their shares is kept; the rest
// is done again. None of these methods publishes a recovery; this is the best that their state allows, granted to them
// for nothing but the work that is done again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "network.hpp"
#include "placement.hpp"
#include "workload.hpp"

namespace cleave::rivals {

/// grid[replica][position] is the position of a device in the study.
using Grid = std::vector<std::vector<std::size_t>>;

/// The next smaller number of replicas to try: about a fifth fewer; 0 after 1.
[[nodiscard]] constexpr std::size_t fewer(std::size_t replicas) {
  return replicas - std::max<std::size_t>(1, replicas / 5);
}

/// Positions of the study's devices in order of min(uplink, downlink), the best first; of equal ones the first.
[[nodiscard]] std::vector<std::size_t> by_link(const StudyInput& study);

/// Of the devices in `order`, those with memory for so many bytes, in that order: the first `most` of them.
[[nodiscard]] std::vector<std::size_t> with_room(const StudyInput& study, std::span<const std::size_t> order,
                                                 double bytes,
                                                 std::size_t most = std::numeric_limits<std::size_t>::max());

/// Grids of the shape of `grid`, which was filled with the best-connected devices: that one. But links do not matter to
/// one device alone: then grids of each device that is faster than all that have as much memory, the fastest first.
/// Which of them holds a layout, and with the shortest step, is for the caller to say.
[[nodiscard]] std::vector<Grid> worth_trying(const StudyInput& study, Grid grid);

/// Devices that share the moments and master weights of a stage of `replicas` replicas. Where devices may be lost each
/// share is kept twice, so that the state of a lost device is left.
[[nodiscard]] std::int64_t sharing_of(const StudyInput& study, std::size_t replicas);

class ReplicaGrid : public Placement {
 public:
  /// The study must outlive the grid.
  ReplicaGrid(const StudyInput& study, Workload workload, Grid grid);
  ReplicaGrid(const ReplicaGrid&) = delete;
  ReplicaGrid& operator=(const ReplicaGrid&) = delete;

  [[nodiscard]] StepCost step() const override { return cost_of(grid_, shares_of(grid_)); }
  [[nodiscard]] bool uses(std::size_t device) const override;
  Remedy lose(std::span<const std::size_t> devices, double progress) override;
  void restore(std::size_t device) override;
  void slow(std::size_t device, double factor) override;

 protected:
  /// Sequences of the batch for each replica; may be zero.
  [[nodiscard]] virtual std::vector<std::int64_t> shares_of(const Grid& grid) const = 0;
  [[nodiscard]] virtual StepCost cost_of(const Grid& grid, const std::vector<std::int64_t>& shares) const = 0;

  /// Whether these devices, put together after a loss, hold the model. True where every device of a position has the
  /// same share of it.
  [[nodiscard]] virtual bool holds(const std::vector<std::size_t>& /*replica*/) const { return true; }

  [[nodiscard]] const Grid& grid() const { return grid_; }
  [[nodiscard]] const Workload& workload() const { return workload_; }
  /// With the devices' present rates.
  [[nodiscard]] const Network& network() const { return network_; }

 private:
  /// Intact replicas of the original grid, then those that can be formed of the rest.
  [[nodiscard]] Grid form() const;

  std::vector<fleet::DeviceProfile> declared_, devices_;
  const fleet::LinkMatrix& declared_links_;
  fleet::LinkMatrix slowed_links_;  // empty until a device slows down
  std::vector<double> factor_;
  Network network_;
  Workload workload_;
  Grid original_, grid_;
  std::vector<bool> lost_;
};

}  // namespace cleave::rivals
