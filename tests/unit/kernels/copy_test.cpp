// Copies of any length from and to any boundary, and nothing beside them.
#include "cleave/kernels/copy.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace cleave::kernels {
namespace {

TEST(CopyPastCaches, CopiesEveryElementAndNoOther) {
  constexpr std::int64_t kRoom = 40;
  for (const std::int64_t n : {0, 1, 15, 16, 63, 64, 65, 100, 1000, 4096}) {
    for (std::int64_t from_offset = 0; from_offset < 3; ++from_offset) {
      for (std::int64_t to_offset = 0; to_offset < 18; ++to_offset) {
        std::vector<float> from(static_cast<std::size_t>(n + kRoom)), to(from.size(), -1);
        for (std::int64_t i = 0; i < n + kRoom; ++i) from[static_cast<std::size_t>(i)] = static_cast<float>(i);
        copy_past_caches(from.data() + from_offset, n, to.data() + to_offset);
        for (std::int64_t i = 0; i < n + kRoom; ++i) {
          const std::int64_t at = i - to_offset;
          const float expected = at >= 0 && at < n ? static_cast<float>(at + from_offset) : -1.0F;
          ASSERT_EQ(to[static_cast<std::size_t>(i)], expected) << n << " elements to " << to_offset << ", at " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace cleave::kernels
