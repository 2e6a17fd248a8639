// The time of rounds that run in tiles: a forecast and a lower bound, in seconds.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "cleave/plan/plan.hpp"
#include "cleave/plan/stage_plan.hpp"

namespace cleave::plan::stages {

/// The forecast for pieces [first, end) in one direction: operations one after another over all devices, each in square
/// blocks on links of the mean rate. Operations of the backward pass overlap in part. It is no less than the time of
/// all results on all uplinks.
[[nodiscard]] double forecast_tiles(const StageWork& work, std::int64_t first, std::int64_t end, bool back,
                                    std::span<const fleet::DeviceProfile> devices, const fleet::ServerProfile& server);

/// The lower bound: operations that depend on each other run one after another, each for at least its own lower bound.
class TilesBound {
 public:
  TilesBound(std::span<const fleet::DeviceProfile> devices, const fleet::ServerProfile& server);
  /// Of pieces [first, end) in one direction. Requires: work.in_tiles.
  [[nodiscard]] double operator()(const StageWork& work, std::int64_t first, std::int64_t end, bool back);

 private:
  [[nodiscard]] double bound_of(const Work& work);

  std::vector<DeviceState> devices_;
  PlanOptions options_;
  std::vector<std::pair<Work, double>> known_;
};

}  // namespace cleave::plan::stages
