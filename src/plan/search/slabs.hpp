// A region of a GEMM's box (some of its rows or columns, at its whole depth), cut along k into slabs of whole K blocks,
// each covered by a group of devices of its own. With one group the region is one plane, and results are finished.
//
// A device prefers the depth at which its downlink and its uplink (or its processor) are done together: deeper, and
// operands take too long; shallower, and partial sums do. Groups hold devices of like preference; blocks, devices and
// pairs of devices move between the groups of a region while that helps the one that is behind.
#pragma once

#include <vector>

#include "bounds/shapes.hpp"
#include "search/tiling_2d.hpp"

namespace cleave::plan {

/// Up to so many devices, whole numbers of slabs and of devices to a slab decide: everything is tried, and plans are
/// not searched for again. Larger fleets have groups to choose from (bench/plan_table, 8 and 64 devices).
inline constexpr std::int64_t kFewDevices = 16;

struct Group {
  std::vector<DeviceRates> devices;
  std::int64_t blocks = 1;   ///< K blocks of its slab
  std::int64_t missing = 0;  ///< elements by which the last of them is short
  double loss = 1;           ///< area that the devices must be able to do for one element that they do in tiles
  ColumnCut cut;             ///< of these devices, unless stale
  bool stale = true;
};

/// A tile in elements of the operation; `device` is DeviceRates::index.
struct BoxTile {
  std::int32_t device = 0;
  GemmBox box;
};

/// Bytes through the server's interface in each direction.
struct ServerBytes {
  double out = 0, in = 0;
  void add(const ServerBytes& other) {
    out += other.out;
    in += other.in;
  }
  /// Seconds for which its busier direction is taken.
  [[nodiscard]] double time(const fleet::ServerProfile& server) const {
    return std::max(out / server.nic_out.value(), in / server.nic_in.value());
  }
};

/// A slab as a plane of its rows and columns.
[[nodiscard]] Tiling2D tiling_2d_of(const Work& work, const GemmBox& slab);

class Region {
 public:
  /// The blocks of `groups` add up to those of `box`; the slab of the last group holds the shorter block.
  Region(const Work& work, const GemmBox& box, std::vector<Group> groups);

  /// The same groups on a box with other rows or columns.
  void resize(const GemmBox& box) { box_ = box; }
  [[nodiscard]] const GemmBox& box() const { return box_; }

  /// Elements of the result that every slab's devices could cover by `finish`, were areas all that counts.
  [[nodiscard]] double capacity(double finish) const;

  /// Moves blocks and devices between groups, as they stand at `finish`.
  void balance(double finish);

  /// Cuts the slabs into columns; sets the losses of the groups. Returns the finish time.
  double cut(double guess);

  /// Exchanges devices and blocks between groups while that ends the slowest earlier (refine.cpp); `effort` limits how
  /// many devices are cut again, `tries` how many moves before the search ends. Requires: cut().
  void refine(std::int64_t effort, std::size_t tries);

  /// Bytes through the server's interface, as cut. Requires: cut().
  [[nodiscard]] ServerBytes server_bytes() const;

  /// Tiles in whole elements, appended; returns the finish time.
  double tile(std::vector<BoxTile>& tiles) const;

 private:
  struct GroupMove;
  [[nodiscard]] std::vector<GroupMove> rank_moves(std::size_t slowest, double finish, std::size_t most) const;
  [[nodiscard]] static double depth_of(const Group& group, std::int64_t blocks) {
    return static_cast<double>(blocks * kBlockK - group.missing);
  }
  void cut_group(Group& group, double guess) const;
  [[nodiscard]] Tiling2D plane_at(const Group& group, std::int64_t blocks) const;
  [[nodiscard]] double area_by(const Group& group, std::int64_t blocks, double finish) const;
  bool improve(std::vector<double>& slack, double finish);

  Work work_;
  GemmBox box_;
  std::vector<Group> groups_;
};

/// A box shared out among devices.
struct BoxTiling {
  double finish = 0;  ///< kNever when the devices cannot do it
  std::vector<BoxTile> tiles;
  bool in_memory = true;  ///< every tile fits its device
};

/// Bytes of its tiles through the server's interface (select.cpp).
[[nodiscard]] ServerBytes server_bytes(const Work& work, const BoxTiling& tiling);

/// The tiles of a tiling as pieces on these devices, which its indices name.
[[nodiscard]] std::vector<TaskletPlan> pieces_of(const BoxTiling& tiling, std::span<const DeviceState> devices);

/// `box` at its whole depth. Within the devices' memories, unless these are too small for all of it at once.
[[nodiscard]] BoxTiling tile_flat(const Work& work, const GemmBox& box, std::span<const DeviceRates> devices);

/// `box` cut in two along any side, and each part again, until there is a device to a part (guillotine_tree.cpp). For
/// few devices.
[[nodiscard]] BoxTiling tile_by_guillotine_tree(const Work& work, const GemmBox& box,
                                                std::span<const DeviceRates> devices);

/// How many ways of cutting a box are tried.
enum class Effort : std::uint8_t { quick, thorough };

/// A box that is to be tiled over devices.
struct TilingProblem {
  const Work& work;
  GemmBox box;
  std::span<const DeviceRates> devices;
  fleet::ServerProfile server;
  BoxBound bound;  ///< a guess of the finish, and the prices that shapes answer to
  SearchStageSet stages;
};

/// What tile_gemm() is to try.
struct Ways {
  Effort effort = Effort::quick;
  /// Devices in a group, where there are enough: fewer make worse tiles, more make depths less alike.
  double group_size = 24;
  double whole_share = 0;  ///< of the work is wanted at the whole depth, at least
  bool in_slabs = false;   ///< nothing is at the whole depth
};

/// The box in three dimensions, as early as the devices and the server's interface can be done with it (tile_gemm.cpp).
/// The finish is the devices' own.
[[nodiscard]] BoxTiling tile_gemm(const TilingProblem& problem, const Ways& ways);

/// tile_gemm() by those devices, and in those shapes, that the server's interface can keep up with (select.cpp).
[[nodiscard]] BoxTiling tile_selected(const TilingProblem& problem);

/// tile_selected(), or parts of the box tiled one after another where memories are small (rounds.cpp).
[[nodiscard]] BoxTiling tile_in_rounds(const TilingProblem& problem);

}  // namespace cleave::plan
