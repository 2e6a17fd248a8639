// How long rounds take that run in tiles: as forecast, and at least. Seconds.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "cleave/plan/plan.hpp"
#include "cleave/plan/stage_plan.hpp"

namespace cleave::plan::stages {

/// A forecast for such a round: operations one after another over all devices, each in square blocks on links of the
/// mean rate, of which some overlap on the way back; no less than all results over all uplinks.
[[nodiscard]] double forecast_tiles(const StageWork& work, std::int64_t first, std::int64_t end, bool back,
                                    std::span<const fleet::DeviceProfile> devices, const fleet::ServerProfile& server);

/// No plan of tiles passes such a round sooner: what depends on each other comes one after another, each operation no
/// quicker than its own bound.
class TilesBound {
 public:
  TilesBound(std::span<const fleet::DeviceProfile> devices, const fleet::ServerProfile& server);
  [[nodiscard]] double operator()(const StageWork& work, std::int64_t first, std::int64_t end, bool back);

 private:
  [[nodiscard]] double bound_of(const Work& work);

  std::vector<DeviceState> devices_;
  PlanOptions options_;
  std::vector<std::pair<Work, double>> known_;
};

}  // namespace cleave::plan::stages
