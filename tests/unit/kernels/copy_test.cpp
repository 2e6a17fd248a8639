// Copies of any length from and to any boundary, and nothing beside them.
#include "cleave/kernels/copy.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
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
        copy_past_caches(ConstRows(from.data() + from_offset, 1, n), to.data() + to_offset);
        for (std::int64_t i = 0; i < n + kRoom; ++i) {
          const std::int64_t at = i - to_offset;
          const float expected = at >= 0 && at < n ? static_cast<float>(at + from_offset) : -1.0F;
          ASSERT_EQ(to[static_cast<std::size_t>(i)], expected) << n << " elements to " << to_offset << ", at " << i;
        }
      }
    }
  }
}

TEST(CopyPastCaches, PutsRowsTogether) {
  constexpr std::int64_t kRows = 7;
  for (const std::int64_t cols : {3, 64, 77, 160, 300}) {
    for (const std::int64_t gap : {0, 5, 16}) {
      std::vector<float> from(static_cast<std::size_t>(kRows * (cols + gap)));
      std::vector<float> to(static_cast<std::size_t>(kRows * cols + 1), -1);
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
      copy_past_caches(ConstRows(from.data(), kRows, cols, cols + gap), to.data());
      for (std::int64_t i = 0; i < kRows * cols; ++i)
        ASSERT_EQ(to[static_cast<std::size_t>(i)], static_cast<float>(i / cols * (cols + gap) + i % cols));
      ASSERT_EQ(to.back(), -1);
      std::vector<float> through(to.size(), -1);
      copy_rows(ConstRows(from.data(), kRows, cols, cols + gap), through.data());
      EXPECT_EQ(through, to);
      std::vector<float> back(from.size(), -2);
      copy_rows(to.data(), Rows(back.data(), kRows, cols, cols + gap));
      for (std::size_t i = 0; i < back.size(); ++i) {
        const bool inside = static_cast<std::int64_t>(i) % (cols + gap) < cols;
        ASSERT_EQ(back[i], inside ? from[i] : -2) << i;
      }
    }
  }
}

TEST(CopyFiniteRows, CopiesAllAndSeesWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr std::int64_t kRows = 3;
  for (const std::int64_t cols : {1, 7, 16, 64, 80, 131, 256, 1000}) {
    for (const float strange : {1.0F, std::numeric_limits<float>::max(), -0.0F, kInfinity, -kInfinity, kNaN}) {
      std::vector<float> from(static_cast<std::size_t>(kRows * cols), 2.0F);
      from[static_cast<std::size_t>(cols + cols / 2)] = strange;
      std::vector<float> to(static_cast<std::size_t>(kRows * (cols + 5)), -1);
      EXPECT_EQ(copy_finite_rows(from.data(), Rows(to.data(), kRows, cols, cols + 5)), std::isfinite(strange));
      for (std::int64_t i = 0; i < kRows; ++i) {
        EXPECT_EQ(std::memcmp(to.data() + i * (cols + 5), from.data() + i * cols,
                              static_cast<std::size_t>(cols) * sizeof(float)),
                  0);
        EXPECT_EQ(to[static_cast<std::size_t>(i * (cols + 5) + cols)], -1);
      }
    }
  }
}

}  // namespace
}  // namespace cleave::kernels
