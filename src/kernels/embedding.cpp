// Embedding. The backward pass is cut along columns: each thread adds all rows, in order, to columns of its own.
#include "cleave/kernels/embedding.hpp"

#include <fmt/format.h>

#include "cleave/base/error.hpp"
#include "row_chunks.hpp"
#include "row_ops.hpp"

namespace cleave::kernels {
namespace {

constexpr std::int64_t kColumnsAtOnce = 128;

void check_tokens(std::span<const std::int32_t> tokens, std::int64_t rows, std::int64_t vocabulary) {
  CLEAVE_ASSERT(std::ssize(tokens) == rows, "{} tokens for {} rows", tokens.size(), rows);
  for (const auto token : tokens)
    CLEAVE_ASSERT(token >= 0 && token < vocabulary, "token {} of a vocabulary of {}", token, vocabulary);
}

}  // namespace

void embed(Parallel& parallel, std::span<const std::int32_t> tokens, std::int64_t seq, ConstRows wte, ConstRows wpe,
           std::int64_t pos_offset, Rows x) {
  check_tokens(tokens, x.rows, wte.rows);
  CLEAVE_ASSERT(wpe.data == nullptr || seq + pos_offset <= wpe.rows, "{} positions from {} of {}", seq, pos_offset,
                wpe.rows);
  for_rows(parallel, x.rows, x.cols, [&](std::int64_t r) {
    const float* token_row = wte.row(tokens[static_cast<std::size_t>(r)]);
    if (wpe.data == nullptr)
      std::copy_n(token_row, x.cols, x.row(r));
    else
      add_row(token_row, wpe.row(r % seq + pos_offset), x.cols, x.row(r));
  });
}

void embed_backward(Parallel& parallel, std::span<const std::int32_t> tokens, std::int64_t seq, ConstRows dx, Rows dwte,
                    Rows dwpe, std::int64_t pos_offset, float scale) {
  if (dwte.data != nullptr) check_tokens(tokens, dx.rows, dwte.rows);
  CLEAVE_ASSERT(dwpe.data == nullptr || seq + pos_offset <= dwpe.rows, "{} positions from {} of {}", seq, pos_offset,
                dwpe.rows);
  parallel.for_chunks(dx.cols, kColumnsAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = 0; r < dx.rows; ++r) {
      const float* gradient = dx.row(r) + begin;
      if (dwte.data != nullptr) {
        float* token_row = dwte.row(tokens[static_cast<std::size_t>(r)]) + begin;
        add_scaled_row(token_row, gradient, scale, end - begin, token_row);
      }
      if (dwpe.data == nullptr) continue;
      float* position_row = dwpe.row(r % seq + pos_offset) + begin;
      add_scaled_row(position_row, gradient, scale, end - begin, position_row);
    }
  });
}

}  // namespace cleave::kernels
