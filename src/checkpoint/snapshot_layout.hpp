// What the writer and the reader of checkpoints must agree on beyond single datasets: places and the root's checksum.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "cleave/checkpoint/tensor.hpp"

namespace cleave::checkpoint {

inline constexpr const char* kModel = "/model";
inline constexpr const char* kOptimizer = "/optimizer";
inline constexpr const char* kExpAvg = "/optimizer/exp_avg";
inline constexpr const char* kExpAvgSq = "/optimizer/exp_avg_sq";
inline constexpr const char* kState = "/state";
inline constexpr const char* kInit = "/init";  // of reference files

/// A dataset as the root's checksum sees it.
struct DatasetSummary {
  Shape shape;
  std::uint64_t sum = 0;
};

/// XXH3-64 over all names, shapes, sums and root attributes, so that a dataset that is gone, renamed or reshaped, or
/// a changed configuration, is noticed. `datasets` by absolute name; `attributes` of the root, all but xxh3.
[[nodiscard]] std::uint64_t summary_checksum(const Attributes& attributes,
                                             const std::map<std::string, DatasetSummary>& datasets);

}  // namespace cleave::checkpoint
