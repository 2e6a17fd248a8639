// Scaled integers against their definition, for every loop that computes them: of every instruction set, and the one
// for extreme exponents.
#include "quantize.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "cleave/base/processor.hpp"
#include "cleave/base/random.hpp"

namespace cleave::kernels::quantize {
namespace {

template <class Int>
class Quantize : public testing::Test {};
using Widths = testing::Types<std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(Quantize, Widths);

/// A row with values from its bound down to nothing, exact halves among them.
struct Row {
  int e;
  std::vector<std::int16_t> f;
  std::vector<float> product;
  ColumnScales columns;
  Row(int row_exponent, int spread, std::int64_t n, int bits) : e(row_exponent) {
    const Random random(21, Purpose::test, static_cast<std::uint32_t>(n));
    for (std::int64_t j = 0; j < n; ++j) {
      const auto at = static_cast<std::uint64_t>(j);
      f.push_back(static_cast<std::int16_t>(static_cast<int>(random.below(4 * at, 2 * spread + 1)) - spread));
      double value = 2 * random.uniform(4 * at + 1) - 1;  // of 2^(e+f)
      if (j % 3 == 1) value = std::ldexp(value, -static_cast<int>(random.below(4 * at + 2, 70)));
      if (j % 3 == 2) value = std::ldexp(static_cast<double>(random.below(4 * at + 3, 99)) - 49.5, -bits);  // halves
      if (j % 31 == 5) value = 1;
      if (j % 31 == 6) value = -1;
      if (j % 31 == 7) value = 0;
      product.push_back(static_cast<float>(std::ldexp(value, e + f.back())));
    }
    columns.assign(f);
  }
  [[nodiscard]] std::int64_t n() const { return std::ssize(f); }
};

template <class Int>
void check_row(Row& row) {
  const int bits = kScaleBits<Int>;
  const auto n = static_cast<std::size_t>(row.n());
  std::vector<Int> sums(n + 1, Int{77}), expected(n);
  std::vector<float> c(n + 1, 7.0f), d(n + 1, 7.0f);
  for (std::size_t j = 0; j < n; ++j)
    expected[j] =
        static_cast<Int>(std::llrint(std::ldexp(static_cast<double>(row.product[j]), bits - row.e - row.f[j])));
  const auto finished = [&](std::size_t j, Int q) {
    return static_cast<float>(std::ldexp(static_cast<double>(q), row.e + row.f[j] - bits));
  };
  ASSERT_FALSE(set_row(row.product.data(), row.n(), row.e, row.columns.from(0), sums.data()));
  for (std::size_t j = 0; j < n; ++j) ASSERT_EQ(sums[j], expected[j]) << row.product[j] << " at " << j;
  ASSERT_FALSE(add_and_finish_row(row.product.data(), row.n(), row.e, row.columns.from(0), sums.data(), d.data()));
  ASSERT_FALSE(add_row(row.product.data(), row.n(), row.e, row.columns.from(0), sums.data()));
  ASSERT_FALSE(finish_row(sums.data(), row.n(), row.e, row.columns.from(0), c.data()));
  for (std::size_t j = 0; j < n; ++j) {
    ASSERT_EQ(sums[j], 2 * expected[j]);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(c[j]), std::bit_cast<std::uint32_t>(finished(j, sums[j]))) << sums[j];
    ASSERT_EQ(std::bit_cast<std::uint32_t>(d[j]), std::bit_cast<std::uint32_t>(c[j]));
  }
  for (const int blocks : {2, 3}) {  // of the same results, the last of them overwritten
    std::vector<float> last = row.product;
    last.push_back(7.0f);
    const BlockRows products{{row.product.data(), last.data(), row.product.data()}, blocks};
    ASSERT_FALSE(sum_and_finish_row<Int>(products, row.n(), row.e, row.columns.from(0), last.data()));
    for (std::size_t j = 0; j < n; ++j) {
      const auto sum = static_cast<Int>(blocks * expected[j]);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(last[j]), std::bit_cast<std::uint32_t>(finished(j, sum))) << sum;
    }
    ASSERT_EQ(last[n], 7.0f);
  }
  ASSERT_EQ(sums[n], 77);  // nothing written beyond the end
  ASSERT_EQ(c[n], 7.0f);
  ASSERT_EQ(d[n], 7.0f);
}

TYPED_TEST(Quantize, EveryLoopFollowsTheDefinition) {
  for (const Instructions level : levels_to_try()) {
    const HideInstructions hide(level);
    for (const std::int64_t n : {1, 7, 8, 15, 16, 17, 40, 1000})
      for (const auto& [e, spread] : {std::pair{0, 3}, {48, 2}, {-48, 20}, {13, 48}, {60, 4}, {-90, 8}, {5, 70}}) {
        SCOPED_TRACE(testing::Message() << "n " << n << " e " << e << " spread " << spread << " " << name_of(level));
        Row row(e, spread, n, kScaleBits<TypeParam>);
        check_row<TypeParam>(row);
      }
  }
}

/// Rows with exponents of their own, as far apart as `ld`.
struct Band {
  static constexpr std::int64_t kRows = 11;
  std::int64_t n, ld;
  std::vector<std::int16_t> e;
  Row first;
  std::vector<float> product;
  Band(std::vector<int> exponents, int spread, std::int64_t cols, int bits)
      : n(cols), ld(cols + 5), first(0, spread, cols, bits) {
    for (std::int64_t i = 0; i < kRows; ++i) {
      e.push_back(static_cast<std::int16_t>(exponents[static_cast<std::size_t>(i) % exponents.size()]));
      for (std::int64_t j = 0; j < ld; ++j)
        product.push_back(j < n ? std::ldexp(first.product[static_cast<std::size_t>(j)], e.back() - static_cast<int>(i))
                                : 7.0F);
    }
  }
  [[nodiscard]] const float* row(std::int64_t i) const { return product.data() + i * ld; }
};

template <class Int>
void check_band(const Band& band) {
  const std::int64_t rows = Band::kRows, n = band.n, ld = band.ld;
  const ColumnFactors columns = band.first.columns.from(0);
  std::vector<Int> sums(static_cast<std::size_t>(rows * ld), Int{77}), expected = sums;
  for (const Sums how : {Sums::set, Sums::add}) {
    ASSERT_FALSE(sum_rows(how, band.row(0), ld, rows, n, band.e.data(), columns, sums.data(), ld));
    for (std::int64_t i = 0; i < rows; ++i)
      ASSERT_FALSE((how == Sums::set ? set_row<Int> : add_row<Int>)(band.row(i), n, band.e[static_cast<std::size_t>(i)],
                                                                    columns, expected.data() + i * ld));
    ASSERT_EQ(sums, expected);
  }
  for (const int blocks : {2, 3}) {
    std::vector<float> c(static_cast<std::size_t>(rows * ld), 7.0F), d = c;
    const BlockBands products{{{band.row(0), band.row(0), band.row(0)}, blocks}, {ld, ld, ld}};
    ASSERT_FALSE(sum_and_finish_rows<Int>(products, rows, n, band.e.data(), columns, c.data(), ld));
    for (std::int64_t i = 0; i < rows; ++i)
      ASSERT_FALSE(sum_and_finish_row<Int>({{band.row(i), band.row(i), band.row(i)}, blocks}, n,
                                           band.e[static_cast<std::size_t>(i)], columns, d.data() + i * ld));
    ASSERT_EQ(c, d);
  }
}

TYPED_TEST(Quantize, BandsAreTheirRows) {
  constexpr int kBits = kScaleBits<TypeParam>;
  for (const Instructions level : levels_to_try()) {
    const HideInstructions hide(level);
    for (const std::int64_t n : {15, 16, 17, 48}) {
      SCOPED_TRACE(testing::Message() << n << " columns, " << name_of(level));
      check_band<TypeParam>(Band({0, 3, -40, 48}, 3, n, kBits));
      check_band<TypeParam>(Band({0, 60, 5, -90, 49, 1}, 4, n, kBits));  // some beyond what fp32 scales
      check_band<TypeParam>(Band({5, -5}, 70, n, kBits));                // columns beyond it
    }
  }
}

TYPED_TEST(Quantize, BandsReportWhatDoesNotFit) {
  constexpr float kEvil = std::numeric_limits<float>::infinity();
  for (const Instructions level : levels_to_try()) {
    const HideInstructions hide(level);
    for (const std::int64_t n : {15, 16, 48})
      for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1})
        for (const std::int64_t row : {0, 4, 10}) {
          Band band({0, 60, 5}, 3, n, kScaleBits<TypeParam>);
          ASSERT_TRUE(rows_are_finite(band.row(0), band.ld, Band::kRows, n));
          std::vector<TypeParam> sums(static_cast<std::size_t>(Band::kRows * band.ld));
          std::vector<float> c(sums.size());
          const std::vector<float> good = band.product;
          band.product[static_cast<std::size_t>(row * band.ld + at)] = kEvil;
          const ColumnFactors columns = band.first.columns.from(0);
          EXPECT_FALSE(rows_are_finite(band.row(0), band.ld, Band::kRows, n));
          EXPECT_TRUE(
              sum_rows(Sums::add, band.row(0), band.ld, Band::kRows, n, band.e.data(), columns, sums.data(), band.ld));
          for (int block = 0; block < 3; ++block) {
            BlockBands products{{{good.data(), good.data(), good.data()}, 3}, {band.ld, band.ld, band.ld}};
            products.first.row[block] = band.row(0);
            EXPECT_TRUE(
                sum_and_finish_rows<TypeParam>(products, Band::kRows, n, band.e.data(), columns, c.data(), band.ld));
          }
        }
    // What lies between the rows is not looked at.
    Band band({0}, 3, 16, kScaleBits<TypeParam>);
    band.product[16] = kEvil;
    EXPECT_TRUE(rows_are_finite(band.row(0), band.ld, Band::kRows, 16));
  }
}

TYPED_TEST(Quantize, ReportsWhatDoesNotFit) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Instructions level : levels_to_try())
    for (const int e : {3, 60}) {  // the second takes the loop for extreme exponents
      const HideInstructions hide(level);
      for (const std::int64_t at : {0, 9, 16, 18}) {
        std::vector<std::int16_t> f(19, 2);
        ColumnScales columns;
        columns.assign(f);
        std::vector<TypeParam> sums(19);
        std::vector<float> c(19);
        const auto bad = [&](float value) {
          std::vector<float> product(19, 1.0f);
          product[static_cast<std::size_t>(at)] = value;
          const bool set = set_row(product.data(), 19, e, columns.from(0), sums.data());
          EXPECT_EQ(add_row(product.data(), 19, e, columns.from(0), sums.data()), set);
          std::fill(sums.begin(), sums.end(), TypeParam{0});
          EXPECT_EQ(add_and_finish_row(product.data(), 19, e, columns.from(0), sums.data(), c.data()), set);
          const std::vector<float> zeros(19);
          for (int block = 0; block < 3; ++block) {
            BlockRows products{{zeros.data(), zeros.data(), zeros.data()}, 3};
            products.row[block] = product.data();
            EXPECT_EQ(sum_and_finish_row<TypeParam>(products, 19, e, columns.from(0), c.data()), set);
          }
          return set;
        };
        const float limit = std::ldexp(1.0f, e + 2 + kLimitBits<TypeParam> - kScaleBits<TypeParam>);
        EXPECT_FALSE(bad(std::nextafter(limit, 0.0f)));
        EXPECT_FALSE(bad(-limit));
        EXPECT_TRUE(bad(limit));
        EXPECT_TRUE(bad(std::nextafter(-limit, -kInfinity)));
        EXPECT_TRUE(bad(kInfinity));
        EXPECT_TRUE(bad(-kInfinity));
        EXPECT_TRUE(bad(std::numeric_limits<float>::quiet_NaN()));
      }
    }
}

TYPED_TEST(Quantize, ReportsOverflowOfTheResult) {
  for (const Instructions level : levels_to_try()) {
    const HideInstructions hide(level);
    std::vector<std::int16_t> f(19, 64);
    ColumnScales columns;
    columns.assign(f);
    std::vector<TypeParam> sums(19, 1);
    std::vector<float> c(19);
    EXPECT_FALSE(finish_row(sums.data(), 19, 64, columns.from(0), c.data()));
    sums[17] = TypeParam{1} << kScaleBits<TypeParam>;  // stands for 2^128
    EXPECT_TRUE(finish_row(sums.data(), 19, 64, columns.from(0), c.data()));
  }
}

}  // namespace
}  // namespace cleave::kernels::quantize
