// The loops of quantize.hpp for 64-bit integers in AVX2, which has no conversion between floating-point numbers and
// those: powers of two that are added leave the integer in the low bits. Same bits as the portable loops; used where
// the exponents of a row and its tile are moderate. 32-bit integers need nothing of the kind: compilers vectorize them
// well.
#pragma once

#include <cstdint>

#include "quantize.hpp"

namespace cleave::kernels::quantize::avx2 {

/// What set_row, add_row, finish_row, add_and_finish_row and sum_and_finish_row do, given the factors of the row and
/// the columns: down = 2^(p - e), down_columns = 2^-f, up = 2^(e - p), up_columns = 2^f. Requires:
/// usable_instructions() is avx2 or better.
[[nodiscard]] bool set_row(const float* product, std::int64_t n, float down, const float* down_columns,
                           std::int64_t* sums);
[[nodiscard]] bool add_row(const float* product, std::int64_t n, float down, const float* down_columns,
                           std::int64_t* sums);
[[nodiscard]] bool finish_row(const std::int64_t* sums, std::int64_t n, double up, const double* up_columns, float* c);
[[nodiscard]] bool add_and_finish_row(const float* product, std::int64_t n, float down, const float* down_columns,
                                      const std::int64_t* sums, double up, const double* up_columns, float* c);
[[nodiscard]] bool sum_and_finish_row(const BlockRows& products, std::int64_t n, float down, const float* down_columns,
                                      double up, const double* up_columns, float* c);

/// sum_rows and sum_and_finish_rows of sixteen columns, whose factors stay in registers. Requires: moderate exponents.
[[nodiscard]] bool sum_sixteen_columns(Sums how, const float* products, std::int64_t ld, std::int64_t rows,
                                       const std::int16_t* row_exponents, const float* down_columns, std::int64_t* sums,
                                       std::int64_t sums_ld);
[[nodiscard]] bool finish_sixteen_columns(const BlockBands& products, std::int64_t rows,
                                          const std::int16_t* row_exponents, const ColumnFactors& columns, float* c,
                                          std::int64_t c_ld);

}  // namespace cleave::kernels::quantize::avx2
