// Canonical products (gemm.hpp has the definition).
//
// A product of several K blocks is worked off in tiles of C, each through all its blocks, so that integer sums stay in
// the last-level cache; the tiling cannot change a bit.
#include "cleave/kernels/gemm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "block_product.hpp"
#include "cleave/base/error.hpp"
#include "quantize.hpp"
#include "tiles.hpp"

namespace cleave::kernels {
namespace {

/// Memory of the calling thread, kept from tile to tile.
struct Scratch {
  std::vector<float> row, products;
  std::vector<std::int32_t> sums_32;
  std::vector<std::int64_t> sums_64;
  quantize::ColumnScales columns;

  template <class T>
  static T* enough(std::vector<T>& memory, std::int64_t count) {
    if (std::ssize(memory) < count) memory.resize(static_cast<std::size_t>(count));
    return memory.data();
  }
  /// Sums of either width.
  template <class Int>
  Int* sums_of(std::int64_t count) {
    if constexpr (sizeof(Int) == 4)
      return enough(sums_32, count);
    else
      return enough(sums_64, count);
  }
};
Scratch& scratch() {
  thread_local Scratch memory;
  return memory;
}

ProductStatus status_of(bool bad) { return bad ? ProductStatus::not_representable : ProductStatus::ok; }

/// One product, its operands and exponents.
struct Product {
  GemmShape shape;
  ConstMatrix a, b;
  std::span<const std::int16_t> row_exponents, col_exponents;
  const PackedOperand* packed_b = nullptr;  // instead of b
};

/// Computes K block `block` of a tile, into `c` where that is there; `use` gets its bands, in rows and columns of the
/// tile.
void multiply_tile(const Product& p, const Tile& tile, std::int64_t block, Matrix c, BandUse use) {
  const std::int64_t k0 = block * kBlockK;
  const bool packed = p.packed_b != nullptr;
  multiply_block({tile.rows(), tile.cols(), std::min(kBlockK, p.shape.k - k0)}, p.a.from(tile.i0, k0),
                 packed ? ConstMatrix() : p.b.from(k0, tile.j0), c, use, Accumulate::no,
                 packed ? p.packed_b->panels(block, tile.j0) : nullptr);
}

/// Asks for the sums of the band that probably comes after a wide one, the rows below, which take longer to come from
/// memory than one product of them takes.
template <class Int>
void fetch_next_band(const Tile& tile, const ResultBand& band, const Int* sums, std::int64_t ld) {
  constexpr std::int64_t kLine = 64 / sizeof(Int);
  if (band.cols() <= quantize::kFewColumns) return;
  const std::int64_t end = std::min(2 * band.i1 - band.i0, tile.rows());
  for (std::int64_t i = band.i1; i < end; ++i)
    for (std::int64_t j = band.j0; j < band.j1; j += kLine) __builtin_prefetch(sums + i * ld + j, 1, 2);
}

/// Adds K blocks [0, blocks) of a tile to its sums, whose first element is *sums. Returns whether a result was bad.
template <class Int>
bool sum_blocks(const Product& p, const Tile& tile, std::int64_t blocks, Int* sums, std::int64_t ld, bool accumulate,
                const quantize::ColumnScales& columns) {
  bool bad = false;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const auto how = block > 0 || accumulate ? quantize::Sums::add : quantize::Sums::set;
    const auto add = [&](const ResultBand& band) {
      bad |= quantize::sum_rows(how, band.data, band.ld, band.rows(), band.cols(),
                                p.row_exponents.data() + tile.i0 + band.i0, columns.from(band.j0),
                                sums + band.i0 * ld + band.j0, ld);
      if (block > 0 || accumulate) fetch_next_band(tile, band, sums, ld);
    };
    multiply_tile(p, tile, block, {}, add);
  }
  return bad;
}

std::span<const std::int16_t> columns_of(const Tile& tile, std::span<const std::int16_t> exponents) {
  return exponents.subspan(tile.j0, tile.cols());
}

/// Calls body(tile, memory) for tiles of m x n, with the scales of the tile's columns in memory.columns. It returns
/// whether anything was not representable.
template <class Body>
ProductStatus for_scaled_tiles(Parallel& parallel, std::int64_t m, std::int64_t n,
                               std::span<const std::int16_t> col_exponents, const Body& body) {
  std::atomic<bool> bad{false};
  for_tiles(parallel, m, n, kTile, [&](const Tile& tile) {
    Scratch& memory = scratch();
    memory.columns.assign(columns_of(tile, col_exponents));
    if (body(tile, memory)) bad = true;
  });
  return status_of(bad);
}

template <class Int>
ProductStatus multiply_boxes_as(Parallel& parallel, std::span<const Product> products, PartialSums sums,
                                bool accumulate) {
  const GemmShape& shape = products.front().shape;
  return for_scaled_tiles(parallel, shape.m, shape.n, products.front().col_exponents,
                          [&](const Tile& tile, Scratch& memory) {
                            Int* const first = static_cast<Int*>(sums.data) + tile.i0 * sums.ld + tile.j0;
                            bool bad = false, add = accumulate;
                            for (const Product& p : products) {
                              bad |= sum_blocks(p, tile, k_blocks(p.shape.k), first, sums.ld, add, memory.columns);
                              add = true;
                            }
                            return bad;
                          });
}

/// For blocks whose bands nobody looks at before they are complete.
constexpr auto leave = [](const ResultBand&) {};

/// Elements between the rows of a tile in memory of our own: at a distance of a power of two, rows would want the same
/// few places of a cache.
constexpr std::int64_t kTileGap = 16;

/// C has two or three K blocks and contiguous rows. The first block's products stay in C, the second of three beside
/// it, until the last block's come, band by band: there are no sums.
template <class Int>
ProductStatus multiply_few_blocks_as(Parallel& parallel, const Product& p, Matrix c) {
  const int blocks = static_cast<int>(k_blocks(p.shape.k));
  return for_scaled_tiles(parallel, p.shape.m, p.shape.n, p.col_exponents, [&](const Tile& tile, Scratch& memory) {
    const Matrix part = c.from(tile.i0, tile.j0);
    const std::int64_t ld = tile.cols() + kTileGap;
    const Matrix second(blocks == 3 ? Scratch::enough(memory.products, tile.rows() * ld) : nullptr, ld);
    for (int block = 0; block + 1 < blocks; ++block) multiply_tile(p, tile, block, block == 0 ? part : second, leave);
    bool bad = false;
    const auto finish = [&](const ResultBand& band) {
      float* const out = &part(band.i0, band.j0);
      const quantize::BlockBands products{{{out, band.data, blocks == 3 ? &second(band.i0, band.j0) : nullptr}, blocks},
                                          {part.row_stride, band.ld, second.row_stride}};
      bad |= quantize::sum_and_finish_rows<Int>(products, band.rows(), band.cols(),
                                                p.row_exponents.data() + tile.i0 + band.i0,
                                                memory.columns.from(band.j0), out, part.row_stride);
    };
    multiply_tile(p, tile, blocks - 1, {}, finish);
    return bad;
  });
}

/// C has many K blocks and contiguous rows. The first block's products stay in C, where they take half the room of
/// integers, until the second's come; the last block goes straight through the sums into C.
template <class Int>
ProductStatus multiply_many_blocks_as(Parallel& parallel, const Product& p, Matrix c) {
  const std::int64_t last = k_blocks(p.shape.k) - 1;
  return for_scaled_tiles(parallel, p.shape.m, p.shape.n, p.col_exponents, [&](const Tile& tile, Scratch& memory) {
    const Matrix part = c.from(tile.i0, tile.j0);
    multiply_tile(p, tile, 0, part, leave);
    const std::int64_t ld = tile.cols() + kTileGap;
    Int* sums = memory.sums_of<Int>(tile.rows() * ld);
    bool bad = false;
    for (std::int64_t block = 1; block <= last; ++block) {
      const auto take = [&](const ResultBand& band) {
        const quantize::ColumnFactors columns = memory.columns.from(band.j0);
        const auto ahead = [&](const auto* from, std::int64_t from_ld, std::int64_t i) {
          quantize::fetch_ahead(from + band.i0 * from_ld + band.j0, from_ld, i - band.i0, band.rows(), band.cols());
        };
        for (std::int64_t i = band.i0; i < band.i1; ++i) {
          const int exponent = p.row_exponents[tile.i0 + i];
          float* const out = &part(i, band.j0);
          if (block == 1 || block == last) ahead(part.data, part.row_stride, i);
          Int* const row = sums + i * ld + band.j0;
          if (block > 1) ahead(sums, ld, i);
          if (block == 1) bad |= quantize::set_row(out, band.cols(), exponent, columns, row);
          bad |= block == last ? quantize::add_and_finish_row(band.row(i), band.cols(), exponent, columns, row, out)
                               : quantize::add_row(band.row(i), band.cols(), exponent, columns, row);
        }
      };
      multiply_tile(p, tile, block, {}, take);
    }
    return bad;
  });
}

template <class Int>
ProductStatus multiply_blocks_as(Parallel& parallel, const Product& p, Matrix c) {
  return k_blocks(p.shape.k) <= 3 ? multiply_few_blocks_as<Int>(parallel, p, c)
                                  : multiply_many_blocks_as<Int>(parallel, p, c);
}

/// C has one K block and contiguous rows.
ProductStatus multiply_one_block(Parallel& parallel, const Product& p, Matrix c) {
  std::atomic<bool> bad{false};
  for_tiles(parallel, p.shape.m, p.shape.n, kAnyTile, [&](const Tile& tile) {
    bool finite = true;
    const auto look = [&](const ResultBand& band) {
      finite = finite && quantize::rows_are_finite(band.data, band.ld, band.rows(), band.cols());
    };
    multiply_tile(p, tile, 0, c.from(tile.i0, tile.j0), look);
    if (!finite) bad = true;
  });
  return status_of(bad);
}

template <class Int>
ProductStatus finish_as(Parallel& parallel, std::int64_t m, std::int64_t n, ConstPartialSums sums,
                        std::span<const std::int16_t> row_exponents, std::span<const std::int16_t> col_exponents,
                        Matrix c) {
  return for_scaled_tiles(parallel, m, n, col_exponents, [&](const Tile& tile, Scratch& memory) {
    float* row = Scratch::enough(memory.row, tile.cols());
    bool bad = false;
    for (std::int64_t i = tile.i0; i < tile.i1; ++i) {
      const Int* from = static_cast<const Int*>(sums.data) + i * sums.ld + tile.j0;
      float* out = c.col_stride == 1 ? &c(i, tile.j0) : row;
      bad |= quantize::finish_row(from, tile.cols(), row_exponents[i], memory.columns.from(0), out);
      if (out == row)
        for (std::int64_t j = 0; j < tile.cols(); ++j) c(i, tile.j0 + j) = row[j];
    }
    return bad;
  });
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

/// C has contiguous rows.
ProductStatus multiply_rows(Parallel& parallel, const Product& p, DType accumulator, Matrix c) {
  if (k_blocks(p.shape.k) == 1) return multiply_one_block(parallel, p, c);
  check_exponents(p.shape, p.row_exponents, p.col_exponents);
  return with_integer(accumulator, [&](auto zero) { return multiply_blocks_as<decltype(zero)>(parallel, p, c); });
}

}  // namespace

void gemm_block(GemmShape shape, ConstMatrix a, ConstMatrix b, Matrix c, Accumulate accumulate) {
  if (c.col_stride == 1) { return multiply_block(shape, a, b, c, leave, accumulate); }
  CLEAVE_ASSERT(accumulate == Accumulate::no, "columns of C are {} apart", c.col_stride);
  const auto copy = [&](const ResultBand& band) {
    for (std::int64_t i = band.i0; i < band.i1; ++i)
      for (std::int64_t j = band.j0; j < band.j1; ++j) c(i, j) = band.row(i)[j - band.j0];
  };
  multiply_block(shape, a, b, {}, copy);
}

ProductStatus multiply_box(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b,
                           std::span<const std::int16_t> row_exponents, std::span<const std::int16_t> col_exponents,
                           PartialSums sums, Accumulate accumulate) {
  const ProductOperands one{a, b, shape.k};
  return multiply_boxes(parallel, shape.m, shape.n, {&one, 1}, row_exponents, col_exponents, sums, accumulate);
}

ProductStatus multiply_boxes(Parallel& parallel, std::int64_t m, std::int64_t n,
                             std::span<const ProductOperands> products, std::span<const std::int16_t> row_exponents,
                             std::span<const std::int16_t> col_exponents, PartialSums sums, Accumulate accumulate) {
  check_exponents({m, n, 0}, row_exponents, col_exponents);
  if (products.empty()) return ProductStatus::ok;
  std::vector<Product> all;
  for (const ProductOperands& of : products) all.push_back({{m, n, of.k}, of.a, of.b, row_exponents, col_exponents});
  return with_integer(sums.type, [&](auto zero) {
    return multiply_boxes_as<decltype(zero)>(parallel, all, sums, accumulate == Accumulate::yes);
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
  return multiply_rows(parallel, {shape, a, b, row_exponents, col_exponents}, accumulator, c);
}

ProductStatus multiply_whole(Parallel& parallel, std::int64_t m, ConstMatrix a, const PackedOperand& b,
                             std::span<const std::int16_t> row_exponents, std::span<const std::int16_t> col_exponents,
                             DType accumulator, Matrix c) {
  CLEAVE_ASSERT(c.col_stride == 1, "C has strides {} and {}", c.row_stride, c.col_stride);
  return multiply_rows(parallel, {{m, b.n(), b.k()}, a, {}, row_exponents, col_exponents, &b}, accumulator, c);
}

}  // namespace cleave::kernels
