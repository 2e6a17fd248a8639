// A row of areas for each device, whole blocks and with the shorter one side by side.
#include "search/areas.hpp"

namespace cleave::plan {

Areas::Areas(const PreferredShapes& preferred, std::span<const DeviceRates> devices, double finish, const GemmBox& box)
    : depths_(static_cast<std::size_t>(k_blocks(box.k())) + 1), areas_(2 * devices.size() * depths_, 0.0) {
  const std::int64_t missing = k_blocks(box.k()) * kBlockK - box.k();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto index = static_cast<std::size_t>(devices[i].index);
    if (index >= places_.size()) places_.resize(index + 1, 0);
    places_[index] = 2 * i * depths_;
    for (std::size_t b = 1; b + 1 < depths_; ++b) {
      double* both = &areas_[2 * (i * depths_ + b)];
      const auto depth = static_cast<std::int64_t>(b) * kBlockK;
      both[0] = both[1] = preferred.area_at(devices[i], finish, depth);
      if (missing > 0) both[1] = preferred.area_at(devices[i], finish, depth - missing);
    }
  }
}

}  // namespace cleave::plan
