// Heads of a matrix on their way into a message and back.
#include "blocks.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cleave/kernels/wire.hpp"

namespace cleave::server {
namespace {

constexpr float kLeft = -2;

float value_of(const std::vector<std::byte>& payload, std::int64_t at, DType wire) {
  if (wire == DType::f32) return reinterpret_cast<const float*>(payload.data())[at];
  return kernels::from_bf16(reinterpret_cast<const std::uint16_t*>(payload.data())[at]);
}
void set(std::vector<std::byte>& payload, std::int64_t at, DType wire, float value) {
  if (wire == DType::f32)
    reinterpret_cast<float*>(payload.data())[at] = value;
  else
    reinterpret_cast<std::uint16_t*>(payload.data())[at] = kernels::to_bf16(value);
}

TEST(Heads, LieOneAfterAnotherInAMessageAndComeBack) {
  constexpr std::int64_t kRows = 5, kGap = 3;  // kGap: rows of other heads' memory between two heads
  for (const DType wire : {DType::f32, DType::bf16}) {
    for (const std::int64_t width : {1, 16, 64, 65, 300}) {
      for (const std::int64_t heads : {1, 2, 6}) {
        const std::int64_t cols = heads * width, ld = cols + 7, apart = (kRows + kGap) * width;
        std::vector<float> from(static_cast<std::size_t>(kRows * ld));
        std::vector<std::byte> payload(static_cast<std::size_t>(heads * apart * size_of(wire)));
        for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i % 251);
        for (std::int64_t i = 0; i < heads * apart; ++i) set(payload, i, wire, kLeft);
        gather_heads({from.data(), kRows, cols, ld}, heads, wire, payload.data(), apart);
        for (std::int64_t i = 0; i < heads * apart; ++i) {
          const std::int64_t head = i / apart, row = i % apart / width, col = i % width;
          const float expected = row < kRows ? from[static_cast<std::size_t>(row * ld + head * width + col)] : kLeft;
          ASSERT_EQ(value_of(payload, i, wire), expected) << i;
        }
        std::vector<float> back(from.size(), kLeft);
        const kernels::Rows to(back.data(), kRows, cols, ld);
        EXPECT_TRUE(scatter_representable_heads(payload.data(), apart, heads, wire, to));
        for (std::int64_t i = 0; i < kRows * ld; ++i) {
          const auto at = static_cast<std::size_t>(i);
          ASSERT_EQ(back[at], i % ld < cols ? from[at] : kLeft) << i;
        }
        set(payload, (heads - 1) * apart + kRows * width - 1, wire, std::numeric_limits<float>::infinity());
        EXPECT_FALSE(scatter_representable_heads(payload.data(), apart, heads, wire, to));
      }
    }
  }
}

}  // namespace
}  // namespace cleave::server
