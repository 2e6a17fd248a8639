// Packed operands hold every element once, in the micro-kernel's order, and zeros beyond; all loops give the same.
#include "panels.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "cleave/base/processor.hpp"

namespace cleave::kernels::panels {
namespace {

constexpr float kUntouched = -99;

struct Operand {
  std::int64_t rows, depth;
  std::vector<float> memory;
  ConstMatrix view;
  Operand(std::int64_t r, std::int64_t d, bool rows_are_neighbours) : rows(r), depth(d) {
    const std::int64_t gap = 3;
    memory.assign(static_cast<std::size_t>((r + gap) * (d + gap)), kUntouched);
    view = rows_are_neighbours ? ConstMatrix(memory.data(), 1, r + gap) : ConstMatrix(memory.data(), d + gap, 1);
    for (std::int64_t i = 0; i < r; ++i)
      for (std::int64_t t = 0; t < d; ++t) const_cast<float&>(view(i, t)) = static_cast<float>(1 + i * d + t);
  }
  Operand(const Operand&) = delete;
};

void check(const Operand& operand, std::int64_t width) {
  const std::int64_t floats = size(operand.rows, operand.depth, width);
  std::vector<float> packed(static_cast<std::size_t>(floats + 16), kUntouched);
  pack(operand.view, operand.rows, operand.depth, width, packed.data());
  for (std::int64_t i = 0; i < count(operand.rows, width) * width; ++i) {
    for (std::int64_t t = 0; t < operand.depth; ++t) {
      const std::int64_t place = (i / width * operand.depth + t) * width + i % width;
      ASSERT_EQ(packed[static_cast<std::size_t>(place)], i < operand.rows ? operand.view(i, t) : 0.0F)
          << "row " << i << " depth " << t << " of " << operand.rows << " x " << operand.depth << ", width " << width;
    }
  }
  for (std::int64_t i = floats; i < floats + 16; ++i) ASSERT_EQ(packed[static_cast<std::size_t>(i)], kUntouched);
}

TEST(Panels, HoldEveryElementInAnyStorage) {
  for (const Instructions level : levels_to_try()) {
    const HideInstructions hide(level);
    SCOPED_TRACE(name_of(level));
    for (const bool rows_are_neighbours : {false, true}) {
      for (const std::int64_t rows : {1, 5, 12, 32, 33, 100}) {
        for (const std::int64_t depth : {1, 15, 16, 17, 64, 131}) {
          const Operand operand(rows, depth, rows_are_neighbours);
          for (const std::int64_t width : {4, 6, 12, 14, 16, 32, 48}) check(operand, width);
        }
      }
    }
  }
}

}  // namespace
}  // namespace cleave::kernels::panels
