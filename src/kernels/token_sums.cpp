// Products whose sums are finished at once go tile by tile, through all tokens, so that only a tile's sums are there.
#include "cleave/kernels/token_sums.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "block_product.hpp"
#include "cleave/base/error.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/kernels/elementwise.hpp"
#include "cleave/kernels/norms.hpp"
#include "cleave/kernels/wire.hpp"
#include "quantize.hpp"
#include "row_chunks.hpp"
#include "tiles.hpp"
#include "unit_rows.hpp"

namespace cleave::kernels {

namespace {

constexpr double kUnits = 0x1p50, kTooLarge = 0x1p10;
constexpr std::int64_t kRowGap = 16;  // between rows of a tile's sums, so that they do not want the same cache lines

// As many of fp32's as rows or columns need.
std::span<const std::int16_t> exponents(std::int64_t count) {
  thread_local KeptVector<std::int16_t> all;
  if (std::ssize(all) < count) all.assign(static_cast<std::size_t>(count), TokenUnit{}.exponents(DType::i64).row);
  return {all.data(), static_cast<std::size_t>(count)};
}

// Sums of a tile, over all tokens. Returns whether a product was not representable.
bool sum_tile(const Tile& tile, std::int64_t k, ConstMatrix a, ConstMatrix b, const TokenRun& tokens,
              const quantize::ColumnScales& columns, std::int64_t* sums, std::int64_t ld) {
  const bool narrow = tokens.unit.wire != DType::f32;
  const double factor = quantize::power_of_two(tokens.unit.of_product());
  bool bad = false;
  for (std::int64_t begin = 0, end = 0; begin < k; begin = end) {
    end = std::min(k, tokens.border_after(begin));
    const auto take = [&](const ResultBand& band) {
      std::int64_t* const to = sums + band.i0 * ld + band.j0;
      if (narrow) {
        for (std::int64_t i = 0; i < band.rows(); ++i)
          bad |= units::add(band.data + i * band.ld, band.cols(), factor, to + i * ld);
      } else {
        bad |= quantize::sum_rows(quantize::Sums::add, band.data, band.ld, band.rows(), band.cols(),
                                  exponents(band.rows()).data(), columns.from(band.j0), to, ld);
      }
    };
    multiply_block({tile.rows(), tile.cols(), end - begin}, a.from(tile.i0, begin), b.from(begin, tile.j0), {}, take);
  }
  return bad;
}

}  // namespace

ProductStatus multiply_tokens(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, TokenRun tokens,
                              PartialSums sums, Accumulate accumulate) {
  const TokenProduct one{a, b, shape.k, tokens};
  return multiply_token_runs(parallel, shape.m, shape.n, {&one, 1}, sums, accumulate);
}

ProductStatus multiply_token_runs(Parallel& parallel, std::int64_t m, std::int64_t n,
                                  std::span<const TokenProduct> products, PartialSums sums, Accumulate accumulate) {
  std::vector<ProductOperands> between_borders;
  for (const TokenProduct& of : products) {
    CLEAVE_ASSERT(sums.type == DType::i64 && of.tokens.seq > 0 && of.tokens.unit == TokenUnit{},
                  "sums over tokens of sequences of {}", of.tokens.seq);
    for (std::int64_t begin = 0, end = 0; begin < of.k; begin = end) {
      end = std::min(of.k, of.tokens.border_after(begin));
      between_borders.push_back({of.a.from(0, begin), of.b.from(begin, 0), end - begin});
    }
  }
  const std::span<const std::int16_t> all = exponents(std::max(m, n));
  return multiply_boxes(parallel, m, n, between_borders, all.first(static_cast<std::size_t>(m)),
                        all.first(static_cast<std::size_t>(n)), sums, accumulate);
}

ProductStatus multiply_all_tokens(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, TokenRun tokens,
                                  Matrix c) {
  if (c.col_stride != 1)  // C^T = B^T A^T, whose rows are contiguous
    return multiply_all_tokens(parallel, {shape.n, shape.m, shape.k}, b.transposed(), a.transposed(), tokens,
                               c.transposed());
  const TokenUnit::Exponents exponent = tokens.unit.exponents(DType::i64);
  const bool narrow = tokens.unit.wire != DType::f32;
  const double factor = quantize::power_of_two(-tokens.unit.as_sent());
  const float most = tokens.unit.largest_sent();
  std::atomic<bool> bad{false};
  for_tiles(parallel, shape.m, shape.n, kTile, [&](const Tile& tile) {
    thread_local KeptVector<std::int64_t> sums;
    thread_local KeptVector<std::int16_t> of_columns;
    thread_local quantize::ColumnScales columns;
    const std::int64_t ld = tile.cols() + kRowGap;
    sums.assign(static_cast<std::size_t>(tile.rows() * ld), 0);
    of_columns.assign(static_cast<std::size_t>(tile.cols()), exponent.column);
    columns.assign(of_columns);
    bool wrong = sum_tile(tile, shape.k, a, b, tokens, columns, sums.data(), ld);
    for (std::int64_t i = 0; i < tile.rows(); ++i) {
      float* const out = &c(tile.i0 + i, tile.j0);
      if (narrow) {
        units::finish(sums.data() + i * ld, tile.cols(), factor, most, out);
      } else {
        wrong |= quantize::finish_row(sums.data() + i * ld, tile.cols(), exponent.row, columns.from(0), out);
      }
    }
    if (wrong) bad = true;
  });
  return bad ? ProductStatus::not_representable : ProductStatus::ok;
}

ProductStatus finish_token_products(Parallel& parallel, std::int64_t m, std::int64_t n, ConstPartialSums sums,
                                    Matrix c) {
  const std::span<const std::int16_t> all = exponents(std::max(m, n));
  return finish_partial_sums(parallel, m, n, sums, all.first(static_cast<std::size_t>(m)),
                             all.first(static_cast<std::size_t>(n)), c);
}

void round_gradient(Parallel& parallel, TokenUnit unit, Rows gradient) {
  if (unit.wire == DType::f32) return;
  const float scale = unit.scale_of_sent();
  for_rows(parallel, gradient.rows, gradient.cols, [&](std::int64_t i) {
    round_to(unit.wire, gradient.band(i, i + 1));
    for (std::int64_t j = 0; j < gradient.cols; ++j) gradient.row(i)[j] *= scale;
  });
}

ProductStatus multiply_run(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, const SumRule& rule,
                           PartialSums sums, Accumulate accumulate) {
  return rule.tokens.seq > 0
             ? multiply_tokens(parallel, shape, a, b, rule.tokens, sums, accumulate)
             : multiply_box(parallel, shape, a, b, rule.row_exponents, rule.column_exponents, sums, accumulate);
}

ProductStatus multiply_depth(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, const SumRule& rule,
                             DType accumulator, Matrix c) {
  return rule.tokens.seq > 0
             ? multiply_all_tokens(parallel, shape, a, b, rule.tokens, c)
             : multiply_whole(parallel, shape, a, b, rule.row_exponents, rule.column_exponents, accumulator, c);
}

void column_sums_of_blocks(Parallel& parallel, ConstRows rows, std::int64_t seq, KeptVector<float>& of_blocks) {
  const TokenBlocks blocks{rows.rows, seq};
  of_blocks.resize(static_cast<std::size_t>(blocks.count() * rows.cols));
  parallel.for_chunks(blocks.count(), 1, [&](std::int64_t block, std::int64_t) {
    bias_gradient(parallel, rows.band(blocks.begin(block), blocks.end(block)), of_blocks.data() + block * rows.cols);
  });
}

ProductStatus add_column_sums(Parallel& parallel, ConstRows rows, std::int64_t seq, std::span<std::int64_t> sums) {
  KeptVector<float> of_blocks;
  column_sums_of_blocks(parallel, rows, seq, of_blocks);
  ProductStatus status = ProductStatus::ok;
  for (std::size_t at = 0; at < of_blocks.size() && status == ProductStatus::ok; at += sums.size())
    status = add_to_token_sums({of_blocks.data() + at, sums.size()}, sums);
  return status;
}

void norm_backward_by_blocks(Parallel& parallel, const NormBackward& of, const TokenBlocks& blocks, float* gradients) {
  parallel.for_chunks(blocks.count(), 1, [&](std::int64_t block, std::int64_t) {
    const std::int64_t begin = blocks.begin(block), end = blocks.end(block);
    const Rows dx = of.dx.data == nullptr ? Rows() : of.dx.band(begin, end);
    float* const to = gradients + block * of.sums();
    if (of.mean != nullptr) {
      layer_norm_backward(parallel, of.x.band(begin, end), of.gain, of.mean + begin, of.rstd + begin,
                          of.dy.band(begin, end), dx, to, to + of.dy.cols);
    } else {
      rms_norm_backward(parallel, of.x.band(begin, end), of.gain, of.rstd + begin, of.dy.band(begin, end), dx, to);
    }
  });
}

ProductStatus add_to_token_sums(std::span<const float> values, std::span<std::int64_t> sums, int loss_bits) {
  CLEAVE_ASSERT(values.size() == sums.size(), "{} values for {} sums", values.size(), sums.size());
  const double without_loss = quantize::power_of_two(-loss_bits);
  bool good = true;
  for (std::size_t j = 0; j < values.size(); ++j) {
    const double value = values[j] * without_loss;
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
