// Low words are added without a lock: tiles share no element. High words are rare, and whoever needs them is alone.
#include "cleave/kernels/token_sum_matrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "block_product.hpp"
#include "cleave/base/error.hpp"
#include "quantize.hpp"
#include "row_chunks.hpp"
#include "tiles.hpp"
#include "unit_rows.hpp"

namespace cleave::kernels {

namespace {

std::mutex promotion;  // of rows of any matrix: it is rare

ProductStatus status_of(bool bad) { return bad ? ProductStatus::not_representable : ProductStatus::ok; }

}  // namespace

TokenSumMatrix::TokenSumMatrix(std::int64_t rows, std::int64_t cols, TokenUnit unit, BlockPool* pool)
    : rows_(rows), cols_(cols), unit_(unit) {
  const auto size = static_cast<std::size_t>(rows * cols);
  if (narrow()) {
    low_.assign(size, 0);
  } else {
    wide_ = PooledBlock(pool, size * sizeof(std::int64_t));
  }
}

std::span<std::int64_t> TokenSumMatrix::zeroed_wide() const {
  const std::span<std::int64_t> all(wide(), static_cast<std::size_t>(rows_ * cols_));
  if (std::exchange(untouched_, false)) std::ranges::fill(all, 0);
  return all;
}

const std::int32_t* TokenSumMatrix::high(std::int64_t row, std::int64_t col) const {
  const auto found = high_.find(row);
  return found == high_.end() ? nullptr : found->second.data() + col;
}

template <class Use>
auto TokenSumMatrix::with_high(std::int64_t row, std::int64_t col, const Use& use) {
  const std::lock_guard lock(promotion);
  KeptVector<std::int32_t>& words = high_[row];
  words.resize(static_cast<std::size_t>(cols_), 0);
  return use(low(row, col), words.data() + col);
}

// Returns whether a value was not finite.
bool TokenSumMatrix::add_row(std::int64_t row, std::int64_t col, const float* values, std::int64_t n, double factor) {
  if (units::add_narrow(values, n, factor, low(row, col))) return false;
  return with_high(row, col, [&](std::int32_t* of_low, std::int32_t* of_high) {
    return units::add_wide(values, n, factor, of_low, of_high);
  });
}

ProductStatus TokenSumMatrix::add_product(Parallel& parallel, std::int64_t k, ConstMatrix a, ConstMatrix b,
                                          TokenRun tokens, Sign sign) {
  CLEAVE_ASSERT(tokens.unit == unit_, "sums of {} with {}", name_of(unit_.wire), name_of(tokens.unit.wire));
  const GemmShape shape{rows_, cols_, k};
  if (!narrow()) {
    if (sign == Sign::add) {
      const TokenProduct one{a, b, k, tokens};
      return add_products(parallel, {&one, 1});
    }
    const std::span<std::int64_t> all = zeroed_wide();
    KeptVector<std::int64_t> own(all.size(), 0);
    const ProductStatus status =
        multiply_tokens(parallel, shape, a, b, tokens, {DType::i64, own.data(), cols_}, Accumulate::yes);
    for (std::size_t i = 0; i < own.size() && status == ProductStatus::ok; ++i) all[i] -= own[i];
    return status;
  }
  const double factor = quantize::power_of_two(unit_.of_product()) * (sign == Sign::add ? 1 : -1);
  std::atomic<bool> bad{false};
  for_tiles(parallel, rows_, cols_, kTile, [&](const Tile& tile) {
    bool wrong = false;
    const auto take = [&](const ResultBand& band) {
      for (std::int64_t i = band.i0; i < band.i1; ++i)
        wrong |= add_row(tile.i0 + i, tile.j0 + band.j0, band.row(i), band.cols(), factor);
    };
    for (std::int64_t begin = 0, end = 0; begin < k; begin = end) {
      end = std::min(k, tokens.border_after(begin));
      multiply_block({tile.rows(), tile.cols(), end - begin}, a.from(tile.i0, begin), b.from(begin, tile.j0), {}, take);
    }
    if (wrong) bad = true;
  });
  return status_of(bad);
}

ProductStatus TokenSumMatrix::add_products(Parallel& parallel, std::span<const TokenProduct> products) {
  const bool any = std::ranges::any_of(products, [](const TokenProduct& of) { return of.k > 0; });
  if (!any) return ProductStatus::ok;
  const auto accumulate = std::exchange(untouched_, false) ? Accumulate::no : Accumulate::yes;
  return multiply_token_runs(parallel, rows_, cols_, products, {DType::i64, wide(), cols_}, accumulate);
}

ProductStatus TokenSumMatrix::add_columns(Parallel& parallel, ConstRows of, std::int64_t seq, Sign sign) {
  CLEAVE_ASSERT(rows_ == 1 && of.cols == cols_, "{} columns for {} x {}", of.cols, rows_, cols_);
  if (!narrow() && sign == Sign::add) return add_column_sums(parallel, of, seq, zeroed_wide());
  if (!narrow()) {
    const std::span<std::int64_t> all = zeroed_wide();
    KeptVector<std::int64_t> own(all.size(), 0);
    const ProductStatus status = add_column_sums(parallel, of, seq, own);
    for (std::size_t i = 0; i < own.size() && status == ProductStatus::ok; ++i) all[i] -= own[i];
    return status;
  }
  KeptVector<float> of_blocks;
  column_sums_of_blocks(parallel, of, seq, of_blocks);
  const double factor = quantize::power_of_two(unit_.of_product()) * (sign == Sign::add ? 1 : -1);
  bool bad = false;
  for (std::size_t at = 0; at < of_blocks.size(); at += static_cast<std::size_t>(cols_))
    bad |= add_row(0, 0, of_blocks.data() + at, cols_, factor);
  return status_of(bad);
}

void TokenSumMatrix::add(Parallel& parallel, const Part& part, ConstPartialSums from) {
  if (!narrow()) {
    return add_partial_sums(parallel, part.rows, part.cols, from,
                            {DType::i64, zeroed_wide().data() + part.row * cols_ + part.col, cols_});
  }
  for_rows(parallel, part.rows, part.cols, [&](std::int64_t i) {
    const std::int64_t row = part.row + i;
    const auto wide = [&](const auto* sums) {
      with_high(row, part.col, [&](std::int32_t* of_low, std::int32_t* of_high) {
        units::add_wide(sums, part.cols, of_low, of_high);
      });
    };
    if (from.type == DType::i64) return wide(static_cast<const std::int64_t*>(from.data) + i * from.ld);
    const auto* const sums = static_cast<const std::int32_t*>(from.data) + i * from.ld;
    if (!units::add_narrow(sums, part.cols, low(row, part.col))) wide(sums);
  });
}

DType TokenSumMatrix::partial_type(const Part& part) const {
  if (!narrow()) return DType::i64;
  for (std::int64_t row = part.row; row < part.row + part.rows; ++row) {
    const std::int32_t* const words = high(row, part.col);
    if (words != nullptr && std::any_of(words, words + part.cols, [](std::int32_t word) { return word != 0; }))
      return DType::i64;
    if (!units::fits(low(row, part.col), part.cols)) return DType::i64;
  }
  return DType::i32;
}

void TokenSumMatrix::partial_sums(Parallel& parallel, const Part& part, PartialSums to) const {
  const std::int64_t* const all = narrow() ? nullptr : zeroed_wide().data();
  for_rows(parallel, part.rows, part.cols, [&](std::int64_t i) {
    const std::int64_t row = part.row + i;
    if (to.type == DType::i32) {
      std::copy_n(low(row, part.col), part.cols, static_cast<std::int32_t*>(to.data) + i * to.ld);
      return;
    }
    auto* const sums = static_cast<std::int64_t*>(to.data) + i * to.ld;
    if (narrow()) {
      units::join(low(row, part.col), high(row, part.col), part.cols, sums);
    } else {
      std::copy_n(all + row * cols_ + part.col, part.cols, sums);
    }
  });
}

ProductStatus TokenSumMatrix::finish(Parallel& parallel, const Part& part, Matrix c) const {
  if (!narrow()) {
    return finish_token_products(parallel, part.rows, part.cols,
                                 {DType::i64, zeroed_wide().data() + part.row * cols_ + part.col, cols_}, c);
  }
  const double factor = quantize::power_of_two(-unit_.as_sent());
  const float most = unit_.largest_sent();
  for_rows(parallel, part.rows, part.cols, [&](std::int64_t i) {
    const std::int64_t row = part.row + i;
    const std::int32_t *const of_low = low(row, part.col), *const of_high = high(row, part.col);
    float* const out = &c(i, 0);
    if (of_high == nullptr) {
      units::finish(of_low, part.cols, factor, most, out);
    } else {
      units::finish(of_low, of_high, part.cols, factor, most, out);
    }
  });
  return ProductStatus::ok;
}

Bytes TokenSumMatrix::memory() const {
  return Bytes(static_cast<std::int64_t>(wide_.capacity()) + (std::ssize(low_) + promoted_rows() * cols_) * 4);
}

}  // namespace cleave::kernels
