// Products go through multiply_box() with exponents that are the same everywhere.
#include "cleave/kernels/token_sums.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cleave/base/error.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/kernels/elementwise.hpp"
#include "cleave/kernels/norms.hpp"

namespace cleave::kernels {

namespace {

constexpr double kUnits = 0x1p50, kTooLarge = 0x1p10;

// As many of them as rows or columns need.
std::span<const std::int16_t> exponents(std::int64_t count) {
  thread_local KeptVector<std::int16_t> all;
  if (std::ssize(all) < count) all.assign(static_cast<std::size_t>(count), kTokenExponent);
  return {all.data(), static_cast<std::size_t>(count)};
}

}  // namespace

ProductStatus multiply_tokens(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, TokenRun tokens,
                              PartialSums sums, Accumulate accumulate) {
  CLEAVE_ASSERT(sums.type == DType::i64 && tokens.seq > 0, "sums over tokens of sequences of {}", tokens.seq);
  const std::span<const std::int16_t> all = exponents(std::max(shape.m, shape.n));
  const auto rows = all.first(static_cast<std::size_t>(shape.m)),
             columns = all.first(static_cast<std::size_t>(shape.n));
  for (std::int64_t begin = 0, end = 0; begin < shape.k; begin = end) {
    const std::int64_t token = tokens.first + begin;
    const std::int64_t border = std::min((token / kBlockK + 1) * kBlockK, (token / tokens.seq + 1) * tokens.seq);
    end = std::min(shape.k, border - tokens.first);
    const ProductStatus status =
        multiply_box(parallel, {shape.m, shape.n, end - begin}, a.from(0, begin), b.from(begin, 0), rows, columns, sums,
                     begin > 0 ? Accumulate::yes : accumulate);
    if (status != ProductStatus::ok) return status;
  }
  return ProductStatus::ok;
}

ProductStatus multiply_all_tokens(Parallel& parallel, GemmShape shape, ConstMatrix a, ConstMatrix b, std::int64_t seq,
                                  Matrix c) {
  KeptVector<std::int64_t> sums(static_cast<std::size_t>(shape.m * shape.n));
  const PartialSums all{DType::i64, sums.data(), shape.n};
  const ProductStatus status = multiply_tokens(parallel, shape, a, b, {seq, 0}, all, Accumulate::no);
  return status == ProductStatus::ok ? finish_token_products(parallel, shape.m, shape.n, all, c) : status;
}

ProductStatus finish_token_products(Parallel& parallel, std::int64_t m, std::int64_t n, ConstPartialSums sums,
                                    Matrix c) {
  const std::span<const std::int16_t> all = exponents(std::max(m, n));
  return finish_partial_sums(parallel, m, n, sums, all.first(static_cast<std::size_t>(m)),
                             all.first(static_cast<std::size_t>(n)), c);
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
             ? multiply_all_tokens(parallel, shape, a, b, rule.tokens.seq, c)
             : multiply_whole(parallel, shape, a, b, rule.row_exponents, rule.column_exponents, accumulator, c);
}

ProductStatus add_column_sums(Parallel& parallel, ConstRows rows, std::int64_t seq, std::span<std::int64_t> sums) {
  const TokenBlocks blocks{rows.rows, seq};
  KeptVector<float> of_blocks(static_cast<std::size_t>(blocks.count() * rows.cols));
  parallel.for_chunks(blocks.count(), 1, [&](std::int64_t block, std::int64_t) {
    bias_gradient(parallel, rows.band(blocks.begin(block), blocks.end(block)), of_blocks.data() + block * rows.cols);
  });
  ProductStatus status = ProductStatus::ok;
  for (std::int64_t block = 0; block < blocks.count() && status == ProductStatus::ok; ++block)
    status = add_to_token_sums({of_blocks.data() + block * rows.cols, sums.size()}, sums);
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
