// Cross-entropy: per row the maximum, the sum of exponentials, and for the gradient the scaled softmax.
#include "cleave/kernels/cross_entropy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/base/shapes.hpp"
#include "fast_math.hpp"
#include "lanes.hpp"
#include "row_ops.hpp"
#include "versions.hpp"

namespace cleave::kernels {
namespace {

constexpr std::int64_t kLossRows = 16;  // rows of a chunk

/// Sum of exp(x - top).
template <class Floats>
CLEAVE_INLINE double exp_sum(const float* x, std::int64_t n, float top) {
  double total = 0;
  for (std::int64_t block = 0; block < n; block += lanes::kBlock) {
    const std::int64_t count = n - block < lanes::kBlock ? n - block : lanes::kBlock;
    float e[lanes::kBlock];
    for (std::int64_t j = 0; j < count; ++j) e[j] = exp_of_negative(x[block + j] - top);
    total += lanes::sum<Floats>(e, count);
  }
  return total;
}

/// What a block's sum of exp(x - its maximum) is to that of its row.
CLEAVE_INLINE double of_row(float block_sum, float block_top, float top) {
  return static_cast<double>(block_sum) * static_cast<double>(exp_of_negative(block_top - top));
}

template <class Floats>
CLEAVE_INLINE void exp_sums_of_blocks(const float* x, std::int64_t n, float* tops, float* sums) {
  for (std::int64_t b = 0; b * kVocabularyBlock < n; ++b) {
    const float* const block = x + b * kVocabularyBlock;
    const std::int64_t left = n - b * kVocabularyBlock, count = left < kVocabularyBlock ? left : kVocabularyBlock;
    tops[b] = largest_of_row(block, count);
    sums[b] = static_cast<float>(exp_sum<Floats>(block, count, tops[b]));
  }
}

/// Sum of exp(x - the row's maximum): of one vocabulary block as it is, of several what their sums, in fp32, come to.
template <class Floats>
CLEAVE_INLINE double exp_sum_row(const float* x, std::int64_t n, float* top_out) {
  const float top = largest_of_row(x, n);
  *top_out = top;
  if (n <= kVocabularyBlock) return exp_sum<Floats>(x, n, top);
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kVocabularyBlock) {
    float block_top, block_sum;
    exp_sums_of_blocks<Floats>(x + begin, n - begin < kVocabularyBlock ? n - begin : kVocabularyBlock, &block_top,
                               &block_sum);
    total += of_row(block_sum, block_top, top);
  }
  return total;
}

/// x = exp(x - top). `top` is a value: behind a pointer it might lie in x, and nothing would be vectorized. Meanwhile
/// `next`, the row that follows, is fetched: all else that is done with a row finds it in the cache.
CLEAVE_INLINE void exp_columns(float* x, std::int64_t n, float top, const float* next) {
  std::int64_t j = 0;
  for (; j + lanes::kLanes <= n; j += lanes::kLanes) {
    __builtin_prefetch(next + j, 1, 2);
    for (std::int64_t c = j; c < j + lanes::kLanes; ++c) x[c] = exp_of_negative(x[c] - top);
  }
  for (; j < n; ++j) x[j] = exp_of_negative(x[j] - top);
}

/// The same, leaving exp(x - the row's maximum) in x.
template <class Floats>
CLEAVE_INLINE double exp_row(float* x, std::int64_t n, const float* next, float* top_out) {
  if (n > kVocabularyBlock) {
    const double sum = exp_sum_row<Floats>(x, n, top_out);
    exp_columns(x, n, *top_out, next);
    return sum;
  }
  *top_out = largest_of_row(x, n);
  exp_columns(x, n, *top_out, next);
  return lanes::sum<Floats>(x, n);
}

CLEAVE_INLINE void scale_row(float* x, std::int64_t n, float factor) {
  for (std::int64_t j = 0; j < n; ++j) x[j] *= factor;
}

/// Sum of row_loss(i) over all rows: in order within a chunk, chunks in order.
template <class RowLoss>
double sum_rows(Parallel& parallel, std::int64_t rows, const RowLoss& row_loss) {
  return parallel.sum_chunks(rows, kLossRows, [&](std::int64_t begin, std::int64_t end) {
    double sum = 0;
    for (std::int64_t i = begin; i < end; ++i) sum += row_loss(i);
    return sum;
  });
}

void check_targets(std::span<const std::int32_t> targets, std::int64_t rows, std::int64_t vocabulary) {
  CLEAVE_ASSERT(std::ssize(targets) == rows, "{} targets for {} rows", targets.size(), rows);
  for (const auto target : targets)
    CLEAVE_ASSERT(target >= 0 && target < vocabulary, "target {} of a vocabulary of {}", target, vocabulary);
}

}  // namespace

double loss_of(float target_logit, float top, double exp_sum) {
  return std::log(exp_sum) - (static_cast<double>(target_logit) - static_cast<double>(top));
}

double cross_entropy(Parallel& parallel, ConstRows logits, std::span<const std::int32_t> targets) {
  check_targets(targets, logits.rows, logits.cols);
  return sum_rows(parallel, logits.rows, [&](std::int64_t i) {
    float top = 0;
    const double sum = CLEAVE_DISPATCH_LANES(exp_sum_row)(logits.row(i), logits.cols, &top);
    return loss_of(logits.row(i)[targets[static_cast<std::size_t>(i)]], top, sum);
  });
}

double cross_entropy_backward(Parallel& parallel, Rows logits, std::span<const std::int32_t> targets, float scale) {
  check_targets(targets, logits.rows, logits.cols);
  return sum_rows(parallel, logits.rows, [&](std::int64_t i) {
    float* row = logits.row(i);
    const std::int32_t target = targets[static_cast<std::size_t>(i)];
    const float target_logit = row[target];
    float top = 0;
    const double sum = CLEAVE_DISPATCH_LANES(exp_row)(row, logits.cols, row + logits.ld, &top);
    const auto target_probability = static_cast<double>(row[target]) / sum;
    dispatch<scale_row>(row, logits.cols, static_cast<float>(static_cast<double>(scale) / sum));
    row[target] = static_cast<float>((target_probability - 1.0) * static_cast<double>(scale));
    return loss_of(target_logit, top, sum);
  });
}

void cross_entropy_rows(Parallel& parallel, ConstRows logits, std::span<const std::int32_t> targets,
                        std::span<float> top, std::span<double> sum, std::span<double> loss) {
  check_targets(targets, logits.rows, logits.cols);
  parallel.for_chunks(logits.rows, kLossRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto i = static_cast<std::size_t>(row);
      sum[i] = CLEAVE_DISPATCH_LANES(exp_sum_row)(logits.row(row), logits.cols, &top[i]);
      loss[i] = loss_of(logits.row(row)[targets[i]], top[i], sum[i]);
    }
  });
}

void cross_entropy_blocks(Parallel& parallel, ConstRows logits, std::span<float> tops, std::span<float> sums) {
  const std::int64_t blocks = vocabulary_blocks(logits.cols);
  CLEAVE_ASSERT(std::ssize(tops) == logits.rows * blocks && sums.size() == tops.size(), "{} sums for {} rows of {}",
                sums.size(), logits.rows, logits.cols);
  parallel.for_chunks(logits.rows, kLossRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) CLEAVE_DISPATCH_LANES(exp_sums_of_blocks)
    (logits.row(row), logits.cols, tops.data() + row * blocks, sums.data() + row * blocks);
  });
}

double join_blocks(std::span<const float> tops, std::span<const float> sums, float& top) {
  top = *std::ranges::max_element(tops);
  double total = 0;
  for (std::size_t b = 0; b < tops.size(); ++b) total += of_row(sums[b], tops[b], top);
  return total;
}

void cross_entropy_columns(Parallel& parallel, Rows logits, std::int64_t col0, std::span<const std::int32_t> targets,
                           std::span<const float> top, std::span<const double> sum, float scale) {
  parallel.for_chunks(logits.rows, kLossRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto i = static_cast<std::size_t>(row);
      float* const x = logits.row(row);
      const std::int64_t target = targets[i] - col0;
      const bool has_target = target >= 0 && target < logits.cols;
      dispatch<exp_columns>(x, logits.cols, top[i], x + logits.ld);
      const double target_probability = has_target ? static_cast<double>(x[target]) / sum[i] : 0;
      dispatch<scale_row>(x, logits.cols, static_cast<float>(static_cast<double>(scale) / sum[i]));
      if (has_target) x[target] = static_cast<float>((target_probability - 1.0) * static_cast<double>(scale));
    }
  });
}

}  // namespace cleave::kernels
