// Copying what others will read: past the caches of the core that copies.
#pragma once

#include <cstdint>

namespace cleave::kernels {

/// to[0, n) = from[0, n), by stores that do not bring the lines of `to` into the caches first, where the processor has
/// them: for memory that another core reads next, or that is read only after much else. The stores are done when the
/// call returns. The ranges must not overlap.
void copy_past_caches(const float* from, std::int64_t n, float* to);

}  // namespace cleave::kernels
