// Freivalds' check: honest blocks pass in every form, a wrong element, a NaN and a swapped block do not.
#include "cleave/kernels/product_check.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "check_block.hpp"
#include "cleave/base/processor.hpp"
#include "cleave/kernels/wire.hpp"
#include "projection.hpp"
#include "same_bits.hpp"

namespace cleave::kernels {
namespace {

using namespace testing_tools;

struct Block {
  GemmShape shape;
  Floats a, b, c;
  std::vector<std::int16_t> e, f;
  Parallel parallel;
  Block(GemmShape s, double offset, std::uint32_t stream = 0)
      : shape(s),
        a(noise(s.m * s.k, stream + 1, 1, offset)),
        b(noise(s.k * s.n, stream + 2, 0.1, offset)),
        c(static_cast<std::size_t>(s.m * s.n)),
        e(static_cast<std::size_t>(s.m)),
        f(static_cast<std::size_t>(s.n)) {
    (void)norm_exponents(parallel, left(), s.m, s.k, e);
    (void)norm_exponents(parallel, right().transposed(), s.n, s.k, f);
    EXPECT_EQ(multiply_whole(parallel, s, left(), right(), e, f, DType::i64, result()), ProductStatus::ok);
  }
  [[nodiscard]] ConstMatrix left() const { return {a.data(), shape.k}; }
  [[nodiscard]] ConstMatrix right() const { return {b.data(), 1, shape.k}; }  // stored transposed
  Matrix result() { return {c.data(), shape.n}; }
  double check(std::uint32_t stream, DType type = DType::f32) {
    const Stored stored = stream % 2 == 0 ? Stored::by_rows : Stored::by_columns;
    return check_product(shape, left(), right(), result(), type, Random(stream, Purpose::verification), DType::f32,
                         stored);
  }
};

const GemmShape kProductShapes[] = {{1, 1, 1},      {1, 500, 7},     {500, 1, 90},   {60, 70, 300},
                                    {100, 90, 768}, {64, 100, 3000}, {256, 40, 768}, {33, 40, 5000}};

TEST(ProductCheck, HonestBlocksPass) {
  for (const double offset : {0.0, 1.0, 30.0})  // offset: sums that only grow, whose rounding errors are the largest
    for (const auto& shape : kProductShapes) {
      Block block(shape, offset, 40);
      for (std::uint32_t draw = 0; draw < 20; ++draw)
        ASSERT_LE(block.check(draw), 1.0) << shape.m << " x " << shape.n << " x " << shape.k << " offset " << offset;
      for (const DType type : {DType::bf16, DType::f16}) {
        if (type == DType::f16 && offset == 30) continue;  // beyond its range
        Block rounded(shape, offset, 40);
        round_to(type, {rounded.c.data(), shape.m, shape.n});
        for (std::uint32_t draw = 0; draw < 20; ++draw) ASSERT_LE(rounded.check(draw, type), 1.0);
      }
    }
}

// The bound of row i before rounding of the result, as product_check.hpp states it.
double bound_of(const Block& block, std::int64_t i) {
  double a_norm = 0, b_norm = 0;
  for (std::int64_t t = 0; t < block.shape.k; ++t) {
    const double x = block.left()(i, t);
    a_norm += x * x;
    for (std::int64_t j = 0; j < block.shape.n; ++j) {
      const double y = block.right()(t, j);
      b_norm += y * y;
    }
  }
  return 4 * 0x1p-24 * (std::sqrt(static_cast<double>(std::min(block.shape.k, kBlockK))) + 1) *
         std::sqrt(a_norm * b_norm);
}

// Whatever x is: an error of more than twice the bound cannot be hidden by an honest error of at most the bound.
TEST(ProductCheck, AFlippedBitOfAnySignificanceAboveTheBoundIsCaught) {
  std::int64_t above = 0, below = 0;
  for (const auto& shape : kProductShapes) {
    Block block(shape, 0);
    const std::int64_t row = shape.m / 2;
    const double bound = bound_of(block, row);
    float& element = block.c[static_cast<std::size_t>(row * shape.n + shape.n / 2)];
    const float honest = element;
    for (int bit = 0; bit < 32; ++bit) {
      element = std::bit_cast<float>(std::bit_cast<std::uint32_t>(honest) ^ (std::uint32_t{1} << bit));
      const double change = std::abs(static_cast<double>(element) - honest);
      const bool certain = !(change <= 2 * bound);  // NaN too
      (certain ? above : below) += 1;
      for (std::uint32_t draw = 0; draw < 5; ++draw) {
        if (certain) { ASSERT_GT(block.check(draw), 1.0) << "bit " << bit << ", k " << shape.k; }
      }
    }
    element = honest;
  }
  EXPECT_GT(above, below / 2);  // most of the exponent, the sign, and the upper part of the mantissa
}

TEST(ProductCheck, ExchangedRowsAndASmallRandomBiasAreCaught) {
  for (const auto& shape : kProductShapes) {
    Block block(shape, 0);
    const Floats honest = block.c;
    if (shape.m > 1) {
      std::swap_ranges(block.c.begin(), block.c.begin() + shape.n, block.c.end() - shape.n);
      EXPECT_GT(block.check(3), 1.0) << shape.m << " x " << shape.n;
      block.c = honest;
    }
    const Floats drawn = noise(std::ssize(block.c), 77);
    for (std::size_t i = 0; i < block.c.size(); ++i) block.c[i] *= 1 + 0.01f * drawn[i];
    EXPECT_GT(block.check(3), 1.0) << shape.m << " x " << shape.n;
  }
}

TEST(ProductCheck, OneWrongElementIsCaught) {
  for (const auto& shape : kProductShapes) {
    Block block(shape, 0);
    const auto at = static_cast<std::size_t>((shape.m / 2) * shape.n + shape.n / 3);
    double a_norm = 0, b_norm = 0;
    for (std::int64_t t = 0; t < shape.k; ++t) {
      const double x = block.left()(shape.m / 2, t);
      a_norm += x * x;
      for (std::int64_t j = 0; j < shape.n; ++j) {
        const double y = block.right()(t, j);
        b_norm += y * y;
      }
    }
    // Twice the stated bound: the sign of the element in x cannot hide it.
    const double bound =
        4 * 0x1p-24 * (std::sqrt(static_cast<double>(std::min(shape.k, kBlockK))) + 1) * std::sqrt(a_norm * b_norm);
    block.c[at] += static_cast<float>(2.1 * bound);
    for (std::uint32_t draw = 0; draw < 20; ++draw) EXPECT_GT(block.check(draw), 1.0);
    for (const float evil : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      block.c[at] = evil;
      EXPECT_TRUE(std::isinf(block.check(1)));
    }
  }
}

TEST(ProductCheck, AnotherBlocksResultIsCaught) {
  Block block({60, 70, 300}, 0), other({60, 70, 300}, 0, 70);
  std::swap(block.c, other.c);
  EXPECT_GT(block.check(1), 100.0);
  Block zeros({60, 70, 300}, 0);
  std::fill(zeros.c.begin(), zeros.c.end(), 0.0f);
  EXPECT_GT(zeros.check(1, DType::bf16), 10.0);
}

template <class Int>
void check_sums(DType type) {
  Block block({50, 60, 4 * kBlockK}, 0);
  const GemmShape run{50, 60, 2 * kBlockK};
  const ConstMatrix a = block.left().from(0, kBlockK), b = block.right().from(kBlockK, 0);
  std::vector<Int> sums(50 * 64);
  const PartialSums place{type, sums.data(), 64};
  ASSERT_EQ(multiply_box(block.parallel, run, a, b, block.e, block.f, place), ProductStatus::ok);
  const auto ratio = [&](std::uint32_t draw) {
    return check_of(run, a, b, DType::f32, Random(draw, Purpose::verification))
        .ratio_of(place, 0, 50, block.e, block.f);
  };
  for (std::uint32_t draw = 0; draw < 50; ++draw) ASSERT_LE(ratio(draw), 1.0);
  auto& element = sums[20 * 64 + 10];
  const Int honest = element;
  element ^= static_cast<Int>(Int{1} << (sizeof(Int) * 8 - 12));  // one flipped bit of weight 2^(e+f-9) or 2^(e+f-8)
  for (std::uint32_t draw = 0; draw < 50; ++draw) EXPECT_GT(ratio(draw), 1.0);
  element = honest;
  EXPECT_LE(ratio(0), 1.0);
  // What honest rounding may err, of the products and of each K block's sums, and little more.
  const auto power = [](std::int32_t exponent) { return std::ldexp(1.0, exponent); };
  double a_square = 0, b_square = 0, weights = 0;
  for (std::int64_t t = 0; t < run.k; ++t) {
    a_square += static_cast<double>(a(20, t)) * a(20, t);
    for (std::int64_t j = 0; j < run.n; ++j) b_square += static_cast<double>(b(t, j)) * b(t, j);
  }
  for (const std::int16_t f : block.f) weights += power(2 * f);
  const int scale_bits = sizeof(Int) == 4 ? 29 : 60;
  const double unit = power(block.e[20] - scale_bits);
  const double bound = 4 * 0x1p-24 * (std::sqrt(static_cast<double>(kBlockK)) + 1) * std::sqrt(a_square * b_square) +
                       std::sqrt(60.0) * 0.5 * 2 * std::sqrt(weights) * unit;
  element = honest + static_cast<Int>(2.1 * bound / (unit * power(block.f[10])));
  for (std::uint32_t draw = 0; draw < 50; ++draw) EXPECT_GT(ratio(draw), 1.0);
}

// Rounded to 16 bits, a row may err by what rounding can, whatever the signs: 8 times the root of its squares, or, of
// fewer elements, all of them together.
TEST(ProductCheck, AllowsWhatRoundingTheResultMayErrAndNoMore) {
  for (const auto& [type, unit] : {std::pair{DType::bf16, 0x1p-8}, std::pair{DType::f16, 0x1p-11}}) {
    for (const std::int64_t cols : {1, 16, 200}) {
      Block block({5, cols, 90}, 0);
      round_to(type, {block.c.data(), 5, cols});
      float* const row = &block.c[static_cast<std::size_t>(2 * cols)];
      float& element = *std::max_element(row, row + cols, [](float a, float b) { return std::abs(a) < std::abs(b); });
      double square = 0;
      for (std::int64_t j = 0; j < cols; ++j) square += static_cast<double>(row[j]) * row[j];
      const double root = std::sqrt(static_cast<double>(cols));
      const double bound = bound_of(block, 2) + std::min(8.0, root) * (unit * std::sqrt(square) + 0x1p-25 * root);
      element += static_cast<float>(std::copysign(3.5 * bound, element));
      round_to(type, {&element, 1, 1});
      for (std::uint32_t draw = 0; draw < 20; ++draw) EXPECT_GT(block.check(draw, type), 1.0) << cols;
    }
  }
}

// Honest sums may reach the scale, rounding beyond it; what is more than twice as large would make others overflow.
TEST(AllRepresentable, SumsWithinTwiceTheScaleAre) {
  const auto is = [](auto value) {
    const DType type = sizeof value == 4 ? DType::i32 : DType::i64;
    const std::vector<decltype(value)> sums{0, value, 1};
    return all_representable(type, sums.data(), 3);
  };
  constexpr std::int32_t kMost32 = 1 << 30;
  constexpr std::int64_t kMost64 = std::int64_t{1} << 61;
  for (const std::int32_t sign : {1, -1}) {
    EXPECT_TRUE(is(sign * kMost32));
    EXPECT_FALSE(is(sign * (kMost32 + 1)));
    EXPECT_TRUE(is(sign * kMost64));
    EXPECT_FALSE(is(sign * (kMost64 + 1)));
  }
  EXPECT_FALSE(is(std::numeric_limits<std::int32_t>::min()));
  EXPECT_FALSE(is(std::numeric_limits<std::int64_t>::min()));
}

// y + weights M for rows of every number and width.
void expect_sums_down(DType type, const Floats& values, std::int64_t ld, std::int64_t cols) {
  for (const std::int64_t rows : {1, 7, 8, 19}) {
    Floats part(static_cast<std::size_t>(rows * cols));
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j)
        part[static_cast<std::size_t>(i * cols + j)] = values[static_cast<std::size_t>(i % 7 * ld + j)];
    const std::vector<std::byte> bytes = packed(type, {part.data(), cols}, rows, cols);
    const Floats drawn = noise(rows, 9);
    const std::vector<double> weights(drawn.begin(), drawn.end());
    std::vector<double> y(static_cast<std::size_t>(cols), 3), squares(static_cast<std::size_t>(cols), 5);
    projection::add_rows(type, bytes.data(), rows, cols, weights.data(), y.data(), squares.data());
    for (std::int64_t j = 0; j < cols; ++j) {
      double sum = 3, square = 5;
      for (std::int64_t i = 0; i < rows; ++i) {
        const double value = part[static_cast<std::size_t>(i * cols + j)];
        sum += weights[i] * value;
        square += value * value;
      }
      EXPECT_NEAR(y[j], sum, 1e-12 * std::sqrt(square) * 5) << name_of(type) << " " << rows << " x " << cols;
      EXPECT_NEAR(squares[j], square, 1e-12 * square);
    }
  }
}

// Sums of every type a row may have against double arithmetic written out, with and without AVX-512.
TEST(ProductCheck, RowsOfEveryTypeAreSummedAlike) {
  constexpr std::int64_t kRows = 7, kLd = 43;
  for (const std::int64_t cols : {1, 7, 8, 9, 16, 43}) {
    const Floats noise_x = noise(cols, 5);
    const std::vector<double> x(noise_x.begin(), noise_x.end());
    for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64}) {
      Floats values = noise(kRows * kLd, 6, 1000);
      values[3] = 0x1p-24f;  // subnormal as f16
      std::vector<std::int32_t> words(values.begin(), values.end());
      std::vector<std::int64_t> longs(values.begin(), values.end());
      std::vector<std::byte> bytes;
      const void* matrix = type == DType::i32 ? static_cast<const void*>(words.data()) : longs.data();
      if (type == DType::i32 || type == DType::i64) {
        values.assign(words.begin(), words.end());
      } else {
        round_to(type, {values.data(), kRows, kLd});
        bytes = packed(type, {values.data(), kLd}, kRows, kLd);
        matrix = bytes.data();
      }
      for (const Instructions level : levels_to_try()) {
        const HideInstructions hide(level);
        std::vector<double> products(kRows), squares(kRows);
        if (type != DType::i32 && type != DType::i64) expect_sums_down(type, values, kLd, cols);
        projection::dot_rows(type, matrix, kLd, kRows, cols, x.data(), products.data(), squares.data());
        for (std::int64_t i = 0; i < kRows; ++i) {
          double product = 0, square = 0;
          for (std::int64_t j = 0; j < cols; ++j) {
            const double value = values[static_cast<std::size_t>(i * kLd + j)];
            product += value * x[j];
            square += value * value;
          }
          EXPECT_NEAR(products[i], product, 1e-12 * std::sqrt(square) * std::sqrt(static_cast<double>(cols)));
          EXPECT_NEAR(squares[i], square, 1e-12 * square) << name_of(type) << " " << cols << " row " << i;
        }
      }
    }
  }
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {  // what is not finite stays so
    for (const float evil : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      const Floats values(9, evil);
      const std::vector<std::byte> bytes = packed(type, {values.data(), 9}, 1, 9);
      const std::vector<double> x(9, 1.0);
      for (const Instructions level : levels_to_try()) {
        const HideInstructions hide(level);
        double product = 0, square = 0;
        projection::dot_rows(type, bytes.data(), 9, 1, 9, x.data(), &product, &square);
        EXPECT_EQ(std::isnan(product), std::isnan(evil));
        EXPECT_FALSE(std::isfinite(square));
      }
    }
  }
}

// Operands that come together, depth by depth: B by rows, A by columns.
TEST(ProductCheck, RunsOfDepthAreTakenAsTheyCome) {
  Block block({60, 70, 300}, 0);
  const ConstMatrix a = block.left().transposed(), b = block.right();
  ProductCheck check(block.shape, DType::f32, {7, Purpose::test, 1}),
      at_once(block.shape, DType::f32, {7, Purpose::test, 1});
  const auto take = [&](ProductCheck& into, bool of_b, std::int64_t first, std::int64_t count) {
    const ConstMatrix lines = (of_b ? b : a).from(first, 0);
    const std::vector<std::byte> band = packed(DType::f32, lines, count, of_b ? 70 : 60);
    if (of_b) {
      into.take_b(Stored::by_rows, band.data(), first, count);
    } else {
      into.take_a(Stored::by_columns, band.data(), first, count);
    }
  };
  for (const std::int64_t first : {0, 100, 200}) {
    take(check, true, first, 100);
    take(check, false, first, 100);
  }
  take(at_once, true, 0, 300);
  take(at_once, false, 0, 300);
  const std::vector<std::byte> c = packed(DType::f32, {block.c.data(), 70}, 60, 70);
  const double ratio = check.ratio_of(DType::f32, c.data(), 0, 60);
  EXPECT_LE(ratio, 1.0);
  EXPECT_NEAR(ratio, at_once.ratio_of(DType::f32, c.data(), 0, 60), 1e-9);
  block.c[71] += 1;
  EXPECT_GT(check.ratio_of(DType::f32, packed(DType::f32, {block.c.data(), 70}, 60, 70).data(), 0, 60), 10.0);
}

TEST(ProductCheck, PartialSums32) { check_sums<std::int32_t>(DType::i32); }
TEST(ProductCheck, PartialSums64) { check_sums<std::int64_t>(DType::i64); }

}  // namespace
}  // namespace cleave::kernels
