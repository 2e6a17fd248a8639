// Sums over tokens in 32 bits that become 64 where they must: exact integers, whatever the order, the cut, and the
// memory that they lie in.
#include "cleave/kernels/token_sum_matrix.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cleave/base/random.hpp"
#include "cleave/kernels/wire.hpp"
#include "same_bits.hpp"

namespace cleave::kernels {
namespace {

using Sign = TokenSumMatrix::Sign;
using testing_tools::Floats;
using testing_tools::noise;

constexpr std::int64_t kRows = 37, kCols = 70, kSeq = 300, kSequences = 7;
constexpr TokenUnit kHalf{DType::f16, 5}, kBrain{DType::bf16, 0};

// Operands of a weight gradient over a batch, rounded to the wire type: A is stored by columns.
struct Operands {
  Floats a, b;
  Operands(DType wire, double size)
      : a(noise(kSequences * kSeq * kRows, 1, size)), b(noise(kSequences * kSeq * kCols, 2)) {
    round_to(wire, {a.data(), kSequences * kSeq, kRows});
    round_to(wire, {b.data(), kSequences * kSeq, kCols});
  }
  [[nodiscard]] ConstMatrix rows(std::int64_t token) const {
    return ConstMatrix(a.data() + token * kRows, kRows).transposed();
  }
  [[nodiscard]] ConstMatrix columns(std::int64_t token) const { return {b.data() + token * kCols, kCols}; }
};

std::vector<std::int64_t> integers(const TokenSumMatrix& sums) {
  Parallel parallel;
  std::vector<std::int64_t> all(static_cast<std::size_t>(sums.rows() * sums.cols()));
  sums.partial_sums(parallel, sums.whole(), {DType::i64, all.data(), sums.cols()});
  return all;
}

// By the definition: each product between two borders, rounded to a unit.
std::vector<std::int64_t> by_definition(const Operands& of, TokenUnit unit) {
  std::vector<std::int64_t> sums(static_cast<std::size_t>(kRows * kCols), 0);
  const TokenRun tokens{kSeq, 0, unit};
  for (std::int64_t begin = 0, end = 0; begin < kSeq * kSequences; begin = end) {
    end = std::min(kSeq * kSequences, tokens.border_after(begin));
    Floats product(sums.size());
    gemm_block({kRows, kCols, end - begin}, of.rows(begin), of.columns(begin), {product.data(), kCols});
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[i] += std::llrint(std::ldexp(static_cast<double>(product[i]), unit.of_product()));
  }
  return sums;
}

TokenSumMatrix sum_of(const Operands& of, TokenUnit unit, const std::vector<std::int64_t>& order, int threads = 1) {
  Parallel parallel(threads);
  TokenSumMatrix sums(kRows, kCols, unit);
  for (const std::int64_t sequence : order) {
    EXPECT_EQ(sums.add_product(parallel, kSeq, of.rows(sequence * kSeq), of.columns(sequence * kSeq),
                               {kSeq, sequence * kSeq, unit}),
              ProductStatus::ok);
  }
  return sums;
}

TEST(TokenSumMatrix, HoldsTheSameIntegersBeforeAndAfterPromotion) {
  for (const double size : {1e-3, 1.0, 30.0, 3000.0}) {
    for (const TokenUnit unit : {kHalf, kBrain}) {
      SCOPED_TRACE(size);
      const Operands of(unit.wire, size);
      const std::vector<std::int64_t> wanted = by_definition(of, unit);
      TokenSumMatrix sums = sum_of(of, unit, {0, 1, 2, 3, 4, 5, 6});
      EXPECT_EQ(integers(sums), wanted);
      const std::int64_t largest =
          std::abs(*std::ranges::max_element(wanted, {}, [](std::int64_t n) { return std::abs(n); }));
      EXPECT_EQ(sums.promoted_rows() > 0, largest > (std::int64_t{1} << 31)) << largest;
      EXPECT_EQ(sums.memory().value(), (kRows + sums.promoted_rows()) * kCols * 4);
      EXPECT_EQ(integers(sum_of(of, unit, {6, 2, 5, 0, 1, 4, 3}, 3)), wanted);
    }
  }
}

TEST(TokenSumMatrix, WhatIsTakenAwayLeavesNoTrace) {
  Parallel parallel;
  const Operands small(DType::f16, 1e-2), large(DType::f16, 1000.0);
  TokenSumMatrix sums = sum_of(small, kHalf, {0, 1, 2, 3, 4, 5, 6});
  const std::vector<std::int64_t> wanted = integers(sums);
  const std::int64_t promoted = sums.promoted_rows();
  for (const Sign sign : {Sign::add, Sign::take_away}) {
    EXPECT_EQ(sums.add_product(parallel, kSeq, large.rows(kSeq), large.columns(kSeq), {kSeq, kSeq, kHalf}, sign),
              ProductStatus::ok);
    EXPECT_EQ(integers(sums) == wanted, sign == Sign::take_away);
  }
  EXPECT_EQ(promoted, 0);
  EXPECT_GT(sums.promoted_rows(), 0);
  EXPECT_EQ(sums.partial_type(sums.whole()), DType::i32) << "it fits again";
}

TEST(TokenSumMatrix, PartialSumsOfEitherTypeAddUpToTheWhole) {
  Parallel parallel(2);
  for (const double size : {1e-2, 100.0}) {
    const Operands of(DType::f16, size);
    const TokenSumMatrix first = sum_of(of, kHalf, {0, 3, 6}), second = sum_of(of, kHalf, {1, 2, 4, 5});
    TokenSumMatrix sums(kRows, kCols, kHalf);
    for (const TokenSumMatrix* from : {&first, &second}) {
      for (const TokenSumMatrix::Part& part :
           {TokenSumMatrix::Part{0, 20, 0, kCols}, {20, kRows - 20, 0, 13}, {20, kRows - 20, 13, kCols - 13}}) {
        const DType type = from->partial_type(part);
        EXPECT_EQ(type, size > 1 ? DType::i64 : DType::i32);
        std::vector<std::int64_t> memory(static_cast<std::size_t>(part.rows * part.cols));
        from->partial_sums(parallel, part, {type, memory.data(), part.cols});
        sums.add(parallel, part, {type, memory.data(), part.cols});
      }
    }
    EXPECT_EQ(integers(sums), by_definition(of, kHalf));
  }
}

// In tiles a device that has the whole depth finishes what it has in a cache; an owner finishes what it has kept.
TEST(TokenSumMatrix, FinishesAsProductsOfAllTokensDo) {
  for (const TokenUnit unit : {kHalf, kBrain, TokenUnit{}}) {
    for (const double size : {1e-4, 1.0, 3000.0}) {
      if (unit.wire == DType::f32 && size > 1) continue;
      SCOPED_TRACE(size);
      Parallel parallel(2);
      const Operands of(unit.wire, size);
      const GemmShape shape{kRows, kCols, kSeq * kSequences};
      Floats kept(static_cast<std::size_t>(kRows * kCols)), at_once = kept, by_columns = kept;
      const TokenSumMatrix sums = sum_of(of, unit, {4, 3, 6, 5, 0, 2, 1});
      EXPECT_EQ(sums.finish(parallel, sums.whole(), {kept.data(), kCols}), ProductStatus::ok);
      const TokenRun all{kSeq, 0, unit};
      EXPECT_EQ(multiply_all_tokens(parallel, shape, of.rows(0), of.columns(0), all, {at_once.data(), kCols}),
                ProductStatus::ok);
      EXPECT_EQ(multiply_all_tokens(parallel, shape, of.rows(0), of.columns(0), all,
                                    Matrix(by_columns.data(), kRows).transposed()),
                ProductStatus::ok);
      EXPECT_EQ(kept, at_once);
      for (std::int64_t i = 0; i < kRows; ++i) {
        for (std::int64_t j = 0; j < kCols; ++j) ASSERT_EQ(by_columns[j * kRows + i], kept[i * kCols + j]);
      }
    }
  }
}

// The least sum is the least number that fp16 has; the largest are cut off; nothing is lost by undoing the scale.
TEST(TokenSumMatrix, GradientsTravelInTheWireType) {
  Parallel parallel;
  for (const TokenUnit unit : {kHalf, kBrain}) {
    TokenSumMatrix sums(1, 4, unit);
    const std::vector<std::int64_t> values{1, -3000, std::int64_t{1} << 33, -(std::int64_t{1} << 45)};
    sums.add(parallel, sums.whole(), {DType::i64, values.data(), 4});
    Floats gradient(4);
    EXPECT_EQ(sums.finish(parallel, sums.whole(), {gradient.data(), 4}), ProductStatus::ok);
    round_gradient(parallel, unit, {gradient.data(), 1, 4});
    EXPECT_EQ(gradient[0], 0x1p-32F);
    EXPECT_NEAR(gradient[1], -3000 * 0x1p-32, unit.wire == DType::f16 ? 0x1p-32 : 8 * 0x1p-32);
    EXPECT_EQ(gradient[2], 2.0F);
    EXPECT_EQ(gradient[3], unit.wire == DType::f16 ? -65504.0F / 256 : -8192.0F);
  }
}

TEST(TokenSumMatrix, BiasesAreSumsOfBlocks) {
  Parallel parallel(2);
  for (const double size : {1e-3, 1e5}) {
    Floats rows = noise(kSequences * kSeq * kCols, 3, size);
    round_to(DType::bf16, {rows.data(), kSequences * kSeq, kCols});
    TokenSumMatrix together(1, kCols, kBrain), one_by_one(1, kCols, kBrain);
    EXPECT_EQ(together.add_columns(parallel, {rows.data(), kSequences * kSeq, kCols}, kSeq), ProductStatus::ok);
    for (std::int64_t s = kSequences; s-- > 0;) {
      const ConstRows of(rows.data() + s * kSeq * kCols, kSeq, kCols);
      for (const Sign sign : {Sign::add, Sign::take_away, Sign::add})
        EXPECT_EQ(one_by_one.add_columns(parallel, of, kSeq, sign), ProductStatus::ok);
    }
    EXPECT_EQ(integers(together), integers(one_by_one));
    EXPECT_EQ(together.promoted_rows(), size > 1 ? 1 : 0);
  }
}

TEST(TokenSumMatrix, RefusesWhatIsNotFinite) {
  Parallel parallel;
  for (const float wrong : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Operands of(DType::f16, 1);
    of.b[1234] = wrong;
    TokenSumMatrix sums(kRows, kCols, kHalf);
    EXPECT_EQ(sums.add_product(parallel, kSeq, of.rows(0), of.columns(0), {kSeq, 0, kHalf}),
              ProductStatus::not_representable);
    Floats c(static_cast<std::size_t>(kRows * kCols));
    EXPECT_EQ(multiply_all_tokens(parallel, {kRows, kCols, kSeq}, of.rows(0), of.columns(0), {kSeq, 0, kHalf},
                                  {c.data(), kCols}),
              ProductStatus::not_representable);
  }
}

// What one product adds is cut off, so that no sum of thousands of them wraps around.
TEST(TokenSumMatrix, CutsOffWhatNoHonestProductHas) {
  Parallel parallel;
  const Floats huge(2 * kSeq, 65504.0F);
  TokenSumMatrix sums(1, 1, {DType::f16, 0});
  for (std::int64_t s = 0; s < 8000; ++s) {
    ASSERT_EQ(sums.add_product(parallel, 2, ConstMatrix(huge.data(), 2), ConstMatrix(huge.data(), 1),
                               {2, 2 * s, {DType::f16, 0}}),
              ProductStatus::ok);
  }
  EXPECT_EQ(integers(sums)[0], 8000 * (std::int64_t{1} << 50));
}

}  // namespace
}  // namespace cleave::kernels
