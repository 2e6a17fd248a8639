// The check of a block in one call: hands the operands over as the server does, row-major in the type they travel in,
// in bands.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cleave/kernels/product_check.hpp"
#include "cleave/kernels/wire.hpp"

namespace cleave::kernels::testing_tools {

/// Rows of a matrix, contiguous, in `type`; what is read must have been rounded to it.
inline std::vector<std::byte> packed(DType type, ConstMatrix matrix, std::int64_t rows, std::int64_t cols) {
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) values[static_cast<std::size_t>(i * cols + j)] = matrix(i, j);
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows * cols * size_of(type)));
  if (type == DType::f32) {
    const auto* first = reinterpret_cast<const std::byte*>(values.data());
    std::copy_n(first, bytes.size(), bytes.begin());
  } else {
    narrow(type, {values.data(), rows, cols}, reinterpret_cast<std::uint16_t*>(bytes.data()), cols);
  }
  return bytes;
}

/// A check that has taken A and B, each as `stored`.
inline ProductCheck check_of(GemmShape shape, ConstMatrix a, ConstMatrix b, DType operands, const Random& random,
                             Stored stored = Stored::by_rows) {
  constexpr std::int64_t kBand = 37;
  ProductCheck check(shape, operands, random);
  const auto in_bands = [&](ConstMatrix from, std::int64_t rows, std::int64_t cols, auto take) {
    if (stored == Stored::by_columns) {
      from = from.transposed();
      std::swap(rows, cols);
    }
    for (std::int64_t i = 0; i < rows; i += kBand) {
      const std::int64_t count = std::min(kBand, rows - i);
      (check.*take)(stored, packed(operands, from.from(i, 0), count, cols).data(), i, count);
    }
  };
  in_bands(b, shape.k, shape.n, &ProductCheck::take_b);
  in_bands(a, shape.m, shape.k, &ProductCheck::take_a);
  return check;
}

inline double check_product(GemmShape shape, ConstMatrix a, ConstMatrix b, ConstMatrix c, DType result,
                            const Random& random, DType operands = DType::f32, Stored stored = Stored::by_rows) {
  return check_of(shape, a, b, operands, random, stored)
      .ratio_of(result, packed(result, c, shape.m, shape.n).data(), 0, shape.m);
}

}  // namespace cleave::kernels::testing_tools
