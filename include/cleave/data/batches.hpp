// The corpus, its split, and the batches that training and evaluation draw from it.
//
// Which tokens step s trains on is a pure function of (seed, s): a resumed run, or one with other devices, sees the
// same batches. Windows are T tokens long; targets are the same window shifted by one, so a window spans T + 1 tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/data/tokens.hpp"

namespace cleave::data {

/// B windows of T tokens. tokens, targets: [B, T], row-major.
struct Batch {
  std::int64_t rows = 0;  ///< B
  std::int64_t seq = 0;   ///< T
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
  bool operator==(const Batch&) const = default;
};

/// Tokens cut in two: training = the first floor(n (1 - val_fraction)), validation = the rest.
class Corpus {
 public:
  /// Requires: 0 <= val_fraction < 1.
  Corpus(TokenArray tokens, double val_fraction);

  [[nodiscard]] const TokenArray& tokens() const { return tokens_; }
  [[nodiscard]] std::int64_t train_tokens() const { return train_tokens_; }
  [[nodiscard]] std::int64_t validation_tokens() const { return tokens_.size() - train_tokens_; }

  /// What is wrong with training on windows of `seq` tokens, or nothing: the training part must hold at least one
  /// window, and so must the validation part unless it is empty.
  [[nodiscard]] std::optional<std::string> shortage(std::int64_t seq) const;

 private:
  TokenArray tokens_;
  std::int64_t train_tokens_ = 0;
};

/// Where training batches come from.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  [[nodiscard]] virtual std::int64_t rows() const = 0;  ///< B
  [[nodiscard]] virtual std::int64_t seq() const = 0;   ///< T
  /// Number of steps that there are batches for; none = as many as wanted.
  [[nodiscard]] virtual std::optional<std::int64_t> steps() const = 0;
  /// XXH3-64 of every token that batches are drawn from, as 32-bit ids: sources that differ in one have another.
  [[nodiscard]] virtual std::uint64_t digest() const = 0;
  /// The batch of step `step`, 0-based. Errors: InputError for a step past steps().
  [[nodiscard]] virtual Batch batch(std::int64_t step) const = 0;
};

/// Row b of step s is the window at offset Random(seed, batch_offset).below(s B + b, n - T) of the n training tokens:
/// uniform over all windows.
class CorpusBatches final : public BatchSource {
 public:
  /// Requires: rows, seq > 0 and no shortage(seq).
  CorpusBatches(std::shared_ptr<const Corpus> corpus, std::int64_t rows, std::int64_t seq, std::uint64_t seed);

  [[nodiscard]] std::int64_t rows() const override { return rows_; }
  [[nodiscard]] std::int64_t seq() const override { return seq_; }
  [[nodiscard]] std::optional<std::int64_t> steps() const override { return std::nullopt; }
  [[nodiscard]] std::uint64_t digest() const override;
  [[nodiscard]] Batch batch(std::int64_t step) const override;
  /// First token of row `row` of step `step`.
  [[nodiscard]] std::int64_t offset(std::int64_t step, std::int64_t row) const;

 private:
  std::shared_ptr<const Corpus> corpus_;
  std::int64_t rows_, seq_;
  std::uint64_t seed_;
};

/// Batches given in full, as reference files have them: step s trains on tokens[s] -> targets[s].
class FixedBatches final : public BatchSource {
 public:
  /// tokens, targets: [steps, rows, seq], row-major.
  /// Errors: InputError unless both hold exactly steps * rows * seq ids, all of them >= 0.
  FixedBatches(std::int64_t steps, std::int64_t rows, std::int64_t seq, std::vector<std::int32_t> tokens,
               std::vector<std::int32_t> targets);

  [[nodiscard]] std::int64_t rows() const override { return rows_; }
  [[nodiscard]] std::int64_t seq() const override { return seq_; }
  [[nodiscard]] std::optional<std::int64_t> steps() const override { return steps_; }
  [[nodiscard]] std::uint64_t digest() const override;
  [[nodiscard]] Batch batch(std::int64_t step) const override;

 private:
  std::int64_t steps_, rows_, seq_;
  std::vector<std::int32_t> tokens_, targets_;
};

/// The validation part as floor((n - 1) / T) windows that do not overlap, in batches of B; the last batch may be
/// smaller. With `limit`, only the first `limit` batches (train.eval_batches).
class ValidationBatches {
 public:
  /// Requires: rows, seq > 0.
  ValidationBatches(std::shared_ptr<const Corpus> corpus, std::int64_t rows, std::int64_t seq,
                    std::optional<std::int64_t> limit = std::nullopt);

  [[nodiscard]] std::int64_t windows() const { return windows_; }  ///< of the batches that there are
  [[nodiscard]] std::int64_t count() const { return (windows_ + rows_ - 1) / rows_; }
  /// Batch `index` of count().
  [[nodiscard]] Batch batch(std::int64_t index) const;

 private:
  std::shared_ptr<const Corpus> corpus_;
  std::int64_t rows_, seq_, windows_;
};

}  // namespace cleave::data
