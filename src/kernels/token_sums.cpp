// Products go through multiply_box() with exponents that are the same everywhere.
#include "cleave/kernels/token_sums.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cleave/base/error.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/kernels/elementwise.hpp"

namespace cleave::kernels {

namespace {

constexpr std::int16_t kExponent = 5;  // of a row and of a column: 10 together, of p = 60
constexpr double kUnits = 0x1p50, kTooLarge = 0x1p10;

// As many of them as rows or columns need.
std::span<const std::int16_t> exponents(std::int64_t count) {
  thread_local KeptVector<std::int16_t> all;
  if (std::ssize(all) < count) all.assign(static_cast<std::size_t>(count), kExponent);
  return {all.data(), static_cast<std::size_t>(count)};
}

}  // namespace

ProductStatus add_token_products(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, std::int64_t token0,
                                 PartialSums sums) {
  CLEAVE_ASSERT(sums.type == DType::i64, "sums over tokens have 64 bits");
  const std::span<const std::int16_t> all = exponents(std::max(shape.m, shape.n));
  const auto rows = all.first(static_cast<std::size_t>(shape.m)),
             columns = all.first(static_cast<std::size_t>(shape.n));
  for (std::int64_t begin = 0, end = 0; begin < shape.k; begin = end) {
    end = std::min(shape.k, ((token0 + begin) / kBlockK + 1) * kBlockK - token0);
    const ProductStatus status = multiply_box(parallel, {shape.m, shape.n, end - begin}, a.from(0, begin),
                                              b.from(begin, 0), rows, columns, sums, Accumulate::yes);
    if (status != ProductStatus::ok) return status;
  }
  return ProductStatus::ok;
}

ProductStatus finish_token_products(Parallel& parallel, std::int64_t m, std::int64_t n, ConstPartialSums sums,
                                    Matrix c) {
  const std::span<const std::int16_t> all = exponents(std::max(m, n));
  return finish_partial_sums(parallel, m, n, sums, all.first(static_cast<std::size_t>(m)),
                             all.first(static_cast<std::size_t>(n)), c);
}

ProductStatus add_column_sums(Parallel& parallel, ConstRows rows, std::span<std::int64_t> sums) {
  KeptVector<float> of_block(static_cast<std::size_t>(rows.cols));
  for (std::int64_t begin = 0; begin < rows.rows; begin += kTokenBlock) {
    bias_gradient(parallel, rows.band(begin, std::min(rows.rows, begin + kTokenBlock)), of_block.data());
    if (const ProductStatus status = add_to_token_sums(of_block, sums); status != ProductStatus::ok) return status;
  }
  return ProductStatus::ok;
}

ProductStatus add_to_token_sums(std::span<const float> values, std::span<std::int64_t> sums) {
  CLEAVE_ASSERT(values.size() == sums.size(), "{} values for {} sums", values.size(), sums.size());
  bool good = true;
  for (std::size_t j = 0; j < values.size(); ++j) {
    const double value = values[j];
    if (!(std::abs(value) < kTooLarge)) {
      good = false;
      continue;
    }
    // Integers wrap around where what an untrusted device sent makes them overflow.
    const auto units = static_cast<std::uint64_t>(std::llrint(value * kUnits));
    sums[j] = static_cast<std::int64_t>(static_cast<std::uint64_t>(sums[j]) + units);
  }
  return good ? ProductStatus::ok : ProductStatus::not_representable;
}

void finish_token_sums(std::span<const std::int64_t> sums, std::span<float> values) {
  for (std::size_t j = 0; j < sums.size(); ++j) values[j] = static_cast<float>(static_cast<double>(sums[j]) / kUnits);
}

}  // namespace cleave::kernels
