// The loops of quantize.hpp in AVX-512, which converts between floats and 64-bit integers by itself. Same bits as the
// portable loops, about three times as fast; used where the exponents of a row and its tile are moderate.
#pragma once

#include <cstdint>

#include "quantize.hpp"

namespace cleave::kernels::quantize::avx512 {

/// What set_row, add_row, finish_row, add_and_finish_row and sum_and_finish_row do, given the factors of the row and
/// the columns: down = 2^(p - e), down_columns = 2^-f, up = 2^(e - p), up_columns = 2^f. Requires:
/// usable_instructions() is avx512.
[[nodiscard]] bool set_row(const float* product, std::int64_t n, float down, const float* down_columns,
                           std::int32_t* sums);
[[nodiscard]] bool set_row(const float* product, std::int64_t n, float down, const float* down_columns,
                           std::int64_t* sums);
[[nodiscard]] bool add_row(const float* product, std::int64_t n, float down, const float* down_columns,
                           std::int32_t* sums);
[[nodiscard]] bool add_row(const float* product, std::int64_t n, float down, const float* down_columns,
                           std::int64_t* sums);
[[nodiscard]] bool finish_row(const std::int32_t* sums, std::int64_t n, double up, const double* up_columns, float* c);
[[nodiscard]] bool finish_row(const std::int64_t* sums, std::int64_t n, double up, const double* up_columns, float* c);
[[nodiscard]] bool add_and_finish_row(const float* product, std::int64_t n, float down, const float* down_columns,
                                      const std::int32_t* sums, double up, const double* up_columns, float* c);
[[nodiscard]] bool add_and_finish_row(const float* product, std::int64_t n, float down, const float* down_columns,
                                      const std::int64_t* sums, double up, const double* up_columns, float* c);
/// The last argument says how wide the integers are.
[[nodiscard]] bool sum_and_finish_row(const BlockRows& products, std::int64_t n, float down, const float* down_columns,
                                      double up, const double* up_columns, float* c, std::int32_t);
[[nodiscard]] bool sum_and_finish_row(const BlockRows& products, std::int64_t n, float down, const float* down_columns,
                                      double up, const double* up_columns, float* c, std::int64_t);

}  // namespace cleave::kernels::quantize::avx512
