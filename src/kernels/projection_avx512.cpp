// Four rows at a time: they share the loads of x, and their eight sums hide the latency of the additions.
#include "projection_avx512.hpp"

#include <fmt/format.h>

#include "cleave/base/error.hpp"
#include "intrinsics.hpp"

#ifdef CLEAVE_HAS_VERSIONS

namespace cleave::kernels::projection::avx512 {
namespace {

using Mask = __mmask8;

// Eight elements as doubles, 0 where the mask has no bit.
struct F32 {
  using Element = float;
  CLEAVE_AVX512_INLINE static void load(Mask mask, const float* from, __m512d& to) {
    to = _mm512_cvtps_pd(_mm256_maskz_loadu_ps(mask, from));
  }
};
struct Bf16 {
  using Element = std::uint16_t;
  CLEAVE_AVX512_INLINE static void load(Mask mask, const std::uint16_t* from, __m512d& to) {
    const __m256i words = _mm256_cvtepu16_epi32(_mm_maskz_loadu_epi16(mask, from));
    to = _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)));
  }
};
struct F16 {
  using Element = std::uint16_t;
  CLEAVE_AVX512_INLINE static void load(Mask mask, const std::uint16_t* from, __m512d& to) {
    to = _mm512_cvtps_pd(_mm256_maskz_cvtph_ps(0xff, _mm_maskz_loadu_epi16(mask, from)));
  }
};
struct I32 {
  using Element = std::int32_t;
  CLEAVE_AVX512_INLINE static void load(Mask mask, const std::int32_t* from, __m512d& to) {
    to = _mm512_cvtepi32_pd(_mm256_maskz_loadu_epi32(mask, from));
  }
};
struct I64 {
  using Element = std::int64_t;
  CLEAVE_AVX512_INLINE static void load(Mask mask, const std::int64_t* from, __m512d& to) {
    to = _mm512_cvtepi64_pd(_mm512_maskz_loadu_epi64(mask, from));
  }
};

constexpr int kTogether = 4;

struct Sums {
  __m512d products[kTogether], squares[kTogether];
};

/// Adds columns [j, j + 8), or those of the mask, of kTogether rows.
template <class Type>
CLEAVE_AVX512_INLINE void add(Mask mask, const typename Type::Element* const* rows, const double* x, std::int64_t j,
                              Sums& sums) {
  const __m512d weights = _mm512_maskz_loadu_pd(mask, x + j);
  for (int r = 0; r < kTogether; ++r) {
    __m512d values;
    Type::load(mask, rows[r] + j, values);
    sums.products[r] = _mm512_fmadd_pd(values, weights, sums.products[r]);
    sums.squares[r] = _mm512_fmadd_pd(values, values, sums.squares[r]);
  }
}

template <class Type>
CLEAVE_AVX512 void dot_rows_of(const typename Type::Element* matrix, std::int64_t ld, std::int64_t rows,
                               std::int64_t cols, const double* x, double* products, double* squares) {
  for (std::int64_t i = 0; i < rows; i += kTogether) {
    const typename Type::Element* line[kTogether];  // past the last row, the last row again
    for (int r = 0; r < kTogether; ++r) line[r] = matrix + (i + r < rows ? i + r : rows - 1) * ld;
    Sums sums;
    for (int r = 0; r < kTogether; ++r) sums.products[r] = sums.squares[r] = _mm512_setzero_pd();
    std::int64_t j = 0;
    for (; j + 8 <= cols; j += 8) add<Type>(0xff, line, x, j, sums);
    if (j < cols) add<Type>(static_cast<Mask>((1U << (cols - j)) - 1U), line, x, j, sums);
    for (int r = 0; r < kTogether && i + r < rows; ++r) {
      products[i + r] = _mm512_reduce_add_pd(sums.products[r]);
      squares[i + r] = _mm512_reduce_add_pd(sums.squares[r]);
    }
  }
}

/// Rows of add_rows() that share one load and store of y and its squares.
constexpr int kAddedTogether = 8;

/// Columns [j, j + 8), or those of the mask, of kRows rows. Two chains of additions each.
template <class Type, int kRows>
CLEAVE_AVX512_INLINE void add_down(Mask mask, const typename Type::Element* rows, std::int64_t ld,
                                   const double* weights, double* y, double* squares) {
  __m512d sums[2] = {_mm512_maskz_loadu_pd(mask, y), _mm512_setzero_pd()};
  __m512d square_sums[2] = {_mm512_maskz_loadu_pd(mask, squares), _mm512_setzero_pd()};
  for (int r = 0; r < kRows; ++r) {
    __m512d values;
    Type::load(mask, rows + r * ld, values);
    sums[r % 2] = _mm512_fmadd_pd(values, _mm512_set1_pd(weights[r]), sums[r % 2]);
    square_sums[r % 2] = _mm512_fmadd_pd(values, values, square_sums[r % 2]);
  }
  _mm512_mask_storeu_pd(y, mask, _mm512_add_pd(sums[0], sums[1]));
  _mm512_mask_storeu_pd(squares, mask, _mm512_add_pd(square_sums[0], square_sums[1]));
}

template <class Type, int kRows>
CLEAVE_AVX512_INLINE void add_some_rows(const typename Type::Element* rows, std::int64_t cols, const double* weights,
                                        double* y, double* squares) {
  std::int64_t j = 0;
  for (; j + 8 <= cols; j += 8) add_down<Type, kRows>(0xff, rows + j, cols, weights, y + j, squares + j);
  if (j < cols)
    add_down<Type, kRows>(static_cast<Mask>((1U << (cols - j)) - 1U), rows + j, cols, weights, y + j, squares + j);
}

template <class Type>
CLEAVE_AVX512 void add_rows_of(const typename Type::Element* matrix, std::int64_t rows, std::int64_t cols,
                               const double* weights, double* y, double* squares) {
  std::int64_t i = 0;
  for (; i + kAddedTogether <= rows; i += kAddedTogether)
    add_some_rows<Type, kAddedTogether>(matrix + i * cols, cols, weights + i, y, squares);
  for (; i < rows; ++i) add_some_rows<Type, 1>(matrix + i * cols, cols, weights + i, y, squares);
}

}  // namespace

void dot_rows(DType type, const void* matrix, std::int64_t ld, std::int64_t rows, std::int64_t cols, const double* x,
              double* products, double* squares) {
  const auto run = [&](auto loads) {
    using Type = decltype(loads);
    dot_rows_of<Type>(static_cast<const typename Type::Element*>(matrix), ld, rows, cols, x, products, squares);
  };
  switch (type) {
    case DType::f32: return run(F32{});
    case DType::bf16: return run(Bf16{});
    case DType::f16: return run(F16{});
    case DType::i32: return run(I32{});
    case DType::i64: return run(I64{});
    default: break;
  }
  CLEAVE_ASSERT(false, "rows of type {}", name_of(type));
}

void add_rows(DType type, const void* matrix, std::int64_t rows, std::int64_t cols, const double* weights, double* y,
              double* squares) {
  const auto run = [&](auto loads) {
    using Type = decltype(loads);
    add_rows_of<Type>(static_cast<const typename Type::Element*>(matrix), rows, cols, weights, y, squares);
  };
  switch (type) {
    case DType::f32: return run(F32{});
    case DType::bf16: return run(Bf16{});
    case DType::f16: return run(F16{});
    default: break;
  }
  CLEAVE_ASSERT(false, "rows of type {}", name_of(type));
}

}  // namespace cleave::kernels::projection::avx512

#else  // another processor: never called

namespace cleave::kernels::projection::avx512 {
void dot_rows(DType, const void*, std::int64_t, std::int64_t, std::int64_t, const double*, double*, double*) {
  CLEAVE_ASSERT(false, "{}", "no AVX-512");
}
void add_rows(DType, const void*, std::int64_t, std::int64_t, const double*, double*, double*) {
  CLEAVE_ASSERT(false, "{}", "no AVX-512");
}
}  // namespace cleave::kernels::projection::avx512

#endif
