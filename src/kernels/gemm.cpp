// Canonical products (gemm.hpp has the definition). The only file that computes with BLIS.
//
// A product is worked off in tiles of C, each through all its K blocks, so that block results and integer sums stay in
// the cache; the tiling cannot change a bit.
#include "cleave/kernels/gemm.hpp"

#include <blis.h>
#include <fmt/format.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "clones.hpp"
#include "quantize.hpp"

namespace cleave::kernels {
namespace {

constexpr std::int64_t kTileRows = 512, kTileCols = 512;

std::int64_t tiles(std::int64_t n, std::int64_t tile) { return (n + tile - 1) / tile; }

/// Calls body(i0, i1, j0, j1) for every tile of an m x n matrix.
template <class Body>
void for_tiles(Parallel& parallel, std::int64_t m, std::int64_t n, Body&& body) {
  const std::int64_t across = tiles(n, kTileCols);
  parallel.for_chunks(tiles(m, kTileRows) * across, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      const std::int64_t i0 = tile / across * kTileRows, j0 = tile % across * kTileCols;
      body(i0, std::min(m, i0 + kTileRows), j0, std::min(n, j0 + kTileCols));
    }
  });
}

/// Scratch of the calling thread, kept from call to call. One use at a time per `Use`.
template <class T, int Use = 0>
T* scratch(std::int64_t count) {
  thread_local std::vector<T> memory;
  if (static_cast<std::int64_t>(memory.size()) < count) memory.resize(static_cast<std::size_t>(count));
  return memory.data();
}

ProductStatus status_of(bool bad) { return bad ? ProductStatus::not_representable : ProductStatus::ok; }

/// Computes block results of one tile and hands each row of each to `take(block, row, P row)`.
template <class Take>
void multiply_tile(std::int64_t m, std::int64_t n, std::int64_t k, ConstMatrix a, ConstMatrix b, const Take& take) {
  float* product = scratch<float>(m * n);
  for (std::int64_t block = 0; block < k_blocks(k); ++block) {
    const std::int64_t k0 = block * kBlockK;
    gemm_block({m, n, std::min(kBlockK, k - k0)}, a.from(0, k0), b.from(k0, 0), {product, n});
    for (std::int64_t i = 0; i < m; ++i) take(block, i, product + i * n);
  }
}

template <class Int>
bool quantize_tile(std::int64_t m, std::int64_t n, std::int64_t k, ConstMatrix a, ConstMatrix b,
                   const std::int16_t* row_exponents, const double* col_scales, Int* sums, std::int64_t ld,
                   bool accumulate) {
  bool bad = false;
  multiply_tile(m, n, k, a, b, [&](std::int64_t block, std::int64_t i, const float* product) {
    const double row_scale = quantize::row_scale<Int>(row_exponents[i]);
    bad |= block == 0 && !accumulate ? quantize::set_row(product, n, row_scale, col_scales, sums + i * ld)
                                     : quantize::add_row(product, n, row_scale, col_scales, sums + i * ld);
  });
  return bad;
}

/// 2^(sign * exponent) for each column.
const double* column_scales(std::span<const std::int16_t> exponents, std::int64_t n, int sign) {
  double* scales = scratch<double>(n);
  for (std::int64_t j = 0; j < n; ++j) scales[j] = quantize::power_of_two(sign * exponents[j]);
  return scales;
}

template <class Int>
ProductStatus multiply_box_as(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b,
                              std::span<const std::int16_t> row_exponents, std::span<const std::int16_t> col_exponents,
                              PartialSums sums, Accumulate accumulate) {
  std::atomic<bool> bad{false};
  for_tiles(parallel, shape.m, shape.n, [&](std::int64_t i0, std::int64_t i1, std::int64_t j0, std::int64_t j1) {
    const double* col_scales = column_scales(col_exponents.subspan(j0), j1 - j0, -1);
    if (quantize_tile(i1 - i0, j1 - j0, shape.k, a.from(i0, 0), b.from(0, j0), row_exponents.data() + i0, col_scales,
                      static_cast<Int*>(sums.data) + i0 * sums.ld + j0, sums.ld, accumulate == Accumulate::yes))
      bad = true;
  });
  return status_of(bad);
}

template <class Int>
ProductStatus finish_as(Parallel& parallel, std::int64_t m, std::int64_t n, ConstPartialSums sums,
                        std::span<const std::int16_t> row_exponents, std::span<const std::int16_t> col_exponents,
                        Matrix c) {
  std::atomic<bool> bad{false};
  for_tiles(parallel, m, n, [&](std::int64_t i0, std::int64_t i1, std::int64_t j0, std::int64_t j1) {
    const double* col_scales = column_scales(col_exponents.subspan(j0), j1 - j0, 1);
    float* row = c.col_stride == 1 ? nullptr : scratch<float, 1>(j1 - j0);
    for (std::int64_t i = i0; i < i1; ++i) {
      float* out = row == nullptr ? &c(i, j0) : row;
      if (quantize::finish_row(static_cast<const Int*>(sums.data) + i * sums.ld + j0, j1 - j0,
                               quantize::finish_scale<Int>(row_exponents[i]), col_scales, out))
        bad = true;
      if (row != nullptr)
        for (std::int64_t j = j0; j < j1; ++j) c(i, j) = row[j - j0];
    }
  });
  return status_of(bad);
}

ProductStatus multiply_one_block(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, Matrix c) {
  std::atomic<bool> bad{false};
  for_tiles(parallel, shape.m, shape.n, [&](std::int64_t i0, std::int64_t i1, std::int64_t j0, std::int64_t j1) {
    gemm_block({i1 - i0, j1 - j0, shape.k}, a.from(i0, 0), b.from(0, j0), c.from(i0, j0));
    for (std::int64_t i = i0; i < i1; ++i)
      if (!quantize::row_is_finite(&c(i, j0), j1 - j0)) bad = true;
  });
  return status_of(bad);
}

template <class Int>
ProductStatus multiply_blocks_as(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b,
                                 std::span<const std::int16_t> row_exponents,
                                 std::span<const std::int16_t> col_exponents, Matrix c) {
  std::atomic<bool> bad{false};
  for_tiles(parallel, shape.m, shape.n, [&](std::int64_t i0, std::int64_t i1, std::int64_t j0, std::int64_t j1) {
    const std::int64_t m = i1 - i0, n = j1 - j0;
    Int* sums = scratch<Int>(m * n);
    bool tile_bad = quantize_tile(m, n, shape.k, a.from(i0, 0), b.from(0, j0), row_exponents.data() + i0,
                                  column_scales(col_exponents.subspan(j0), n, -1), sums, n, false);
    const double* col_scales = column_scales(col_exponents.subspan(j0), n, 1);
    for (std::int64_t i = 0; i < m; ++i)
      tile_bad |= quantize::finish_row(sums + i * n, n, quantize::finish_scale<Int>(row_exponents[i0 + i]), col_scales,
                                       &c(i0 + i, j0));
    if (tile_bad) bad = true;
  });
  return status_of(bad);
}

void check_exponents(GemmShape shape, std::span<const std::int16_t> rows, std::span<const std::int16_t> cols) {
  CLEAVE_ASSERT(std::ssize(rows) >= shape.m && std::ssize(cols) >= shape.n,
                "{} row and {} column exponents for {} x {}", rows.size(), cols.size(), shape.m, shape.n);
}

/// Calls body with a zero of the integer type of `type`.
template <class Body>
auto with_integer(DType type, const Body& body) {
  CLEAVE_ASSERT(type == DType::i32 || type == DType::i64, "partial sums of type {}", name_of(type));
  return type == DType::i32 ? body(std::int32_t{}) : body(std::int64_t{});
}

}  // namespace

void gemm_block(GemmShape shape, ConstMatrix a, ConstMatrix b, Matrix c, int threads) {
  CLEAVE_ASSERT(shape.k <= kBlockK && shape.m >= 0 && shape.n >= 0 && shape.k >= 0, "block of {} x {} x {}", shape.m,
                shape.n, shape.k);
  selected_gemm_kernels();
  rntm_t runtime;
  bli_rntm_init(&runtime);
  bli_rntm_set_num_threads(threads, &runtime);
  bli_rntm_disable_l3_sup(&runtime);  // its kernels give other bits in other tiles
  float one = 1, zero = 0;
  // BLIS declares its inputs without const and does not write to them.
  bli_sgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, shape.m, shape.n, shape.k, &one, const_cast<float*>(a.data),
               a.row_stride, a.col_stride, const_cast<float*>(b.data), b.row_stride, b.col_stride, &zero, c.data,
               c.row_stride, c.col_stride, nullptr, &runtime);
}

ProductStatus multiply_box(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b,
                           std::span<const std::int16_t> row_exponents, std::span<const std::int16_t> col_exponents,
                           PartialSums sums, Accumulate accumulate) {
  check_exponents(shape, row_exponents, col_exponents);
  return with_integer(sums.type, [&](auto zero) {
    return multiply_box_as<decltype(zero)>(parallel, shape, a, b, row_exponents, col_exponents, sums, accumulate);
  });
}

void add_partial_sums(Parallel& parallel, std::int64_t m, std::int64_t n, ConstPartialSums from, PartialSums into) {
  CLEAVE_ASSERT(from.type == into.type, "{} and {}", name_of(from.type), name_of(into.type));
  with_integer(into.type, [&](auto zero) {
    using Int = decltype(zero);
    const auto* source = static_cast<const Int*>(from.data);
    auto* target = static_cast<Int*>(into.data);
    parallel.for_chunks(m, std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, n)),
                        [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t i = begin; i < end; ++i)
                            quantize::add_integers(source + i * from.ld, n, target + i * into.ld);
                        });
  });
}

ProductStatus finish_partial_sums(Parallel& parallel, std::int64_t m, std::int64_t n, ConstPartialSums sums,
                                  std::span<const std::int16_t> row_exponents,
                                  std::span<const std::int16_t> col_exponents, Matrix c) {
  check_exponents({m, n, 0}, row_exponents, col_exponents);
  return with_integer(sums.type, [&](auto zero) {
    return finish_as<decltype(zero)>(parallel, m, n, sums, row_exponents, col_exponents, c);
  });
}

ProductStatus multiply_whole(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b,
                             std::span<const std::int16_t> row_exponents, std::span<const std::int16_t> col_exponents,
                             DType accumulator, Matrix c) {
  CLEAVE_ASSERT(c.row_stride == 1 || c.col_stride == 1, "C has strides {} and {}", c.row_stride, c.col_stride);
  if (c.col_stride != 1)  // C^T = B^T A^T, whose rows are contiguous
    return multiply_whole(parallel, {shape.n, shape.m, shape.k}, b.transposed(), a.transposed(), col_exponents,
                          row_exponents, accumulator, c.transposed());
  if (k_blocks(shape.k) == 1) return multiply_one_block(parallel, shape, a, b, c);
  check_exponents(shape, row_exponents, col_exponents);
  return with_integer(accumulator, [&](auto zero) {
    return multiply_blocks_as<decltype(zero)>(parallel, shape, a, b, row_exponents, col_exponents, c);
  });
}

}  // namespace cleave::kernels
