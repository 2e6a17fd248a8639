// Corpus split, random training windows, whole-validation windows, given batches.
#include "cleave/data/batches.hpp"

#include <fmt/format.h>

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>

#include "cleave/base/random.hpp"

namespace cleave::data {

namespace {

/// Copies the window at `offset` into row `row`: tokens [offset, offset + T), targets one further.
void copy_window(const TokenArray& tokens, std::int64_t offset, std::int64_t row, Batch& batch) {
  const auto begin = static_cast<std::size_t>(row * batch.seq), length = static_cast<std::size_t>(batch.seq);
  tokens.copy(offset, std::span(batch.tokens).subspan(begin, length));
  tokens.copy(offset + 1, std::span(batch.targets).subspan(begin, length));
}

Batch empty_batch(std::int64_t rows, std::int64_t seq) {
  const auto size = static_cast<std::size_t>(rows * seq);
  return Batch{rows, seq, std::vector<std::int32_t>(size), std::vector<std::int32_t>(size)};
}

/// XXH3-64 of what is added to it.
class Digest {
 public:
  Digest() {
    if (!state_) throw std::bad_alloc();
    XXH3_64bits_reset(state_.get());
  }
  void add(std::span<const std::int32_t> ids) { XXH3_64bits_update(state_.get(), ids.data(), ids.size_bytes()); }
  [[nodiscard]] std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_{XXH3_createState(), XXH3_freeState};
};

}  // namespace

Corpus::Corpus(TokenArray tokens, double val_fraction) : tokens_(std::move(tokens)) {
  CLEAVE_ASSERT(val_fraction >= 0 && val_fraction < 1, "val_fraction {}", val_fraction);
  train_tokens_ = static_cast<std::int64_t>(std::floor(static_cast<double>(tokens_.size()) * (1.0 - val_fraction)));
}

std::optional<std::string> Corpus::shortage(std::int64_t seq) const {
  const auto describe = [&](std::string_view part, std::int64_t count) {
    return fmt::format("the {} part of the text has {} tokens, but a window of {} needs {}", part, count, seq, seq + 1);
  };
  if (train_tokens() < seq + 1) return describe("training", train_tokens());
  if (validation_tokens() > 0 && validation_tokens() < seq + 1) return describe("validation", validation_tokens());
  return std::nullopt;
}

CorpusBatches::CorpusBatches(std::shared_ptr<const Corpus> corpus, std::int64_t rows, std::int64_t seq,
                             std::uint64_t seed)
    : corpus_(std::move(corpus)), rows_(rows), seq_(seq), seed_(seed) {
  CLEAVE_ASSERT(rows > 0 && seq > 0, "batch of {} windows of {}", rows, seq);
  CLEAVE_ASSERT(corpus_->train_tokens() > seq, "{} training tokens, windows of {}", corpus_->train_tokens(), seq);
}

std::int64_t CorpusBatches::offset(std::int64_t step, std::int64_t row) const {
  const Random random(seed_, Purpose::batch_offset);
  const auto index = static_cast<std::uint64_t>(step * rows_ + row);
  return static_cast<std::int64_t>(random.below(index, static_cast<std::uint64_t>(corpus_->train_tokens() - seq_)));
}

// In blocks, since an array may hold its ids in fewer bytes.
std::uint64_t CorpusBatches::digest() const {
  constexpr std::int64_t kBlock = 1 << 16;
  const TokenArray& tokens = corpus_->tokens();
  std::vector<std::int32_t> block;
  Digest digest;
  for (std::int64_t first = 0; first < tokens.size(); first += kBlock) {
    block.resize(static_cast<std::size_t>(std::min(kBlock, tokens.size() - first)));
    tokens.copy(first, block);
    digest.add(block);
  }
  return digest.value();
}

Batch CorpusBatches::batch(std::int64_t step) const {
  Batch batch = empty_batch(rows_, seq_);
  for (std::int64_t row = 0; row < rows_; ++row) copy_window(corpus_->tokens(), offset(step, row), row, batch);
  return batch;
}

FixedBatches::FixedBatches(std::int64_t steps, std::int64_t rows, std::int64_t seq, std::vector<std::int32_t> tokens,
                           std::vector<std::int32_t> targets)
    : steps_(steps), rows_(rows), seq_(seq), tokens_(std::move(tokens)), targets_(std::move(targets)) {
  const auto size = static_cast<std::int64_t>(tokens_.size());
  // Divided rather than multiplied: sizes from a file must not overflow.
  const bool fits = steps > 0 && rows > 0 && seq > 0 && size % steps == 0 && size / steps % rows == 0 &&
                    size / steps / rows == seq && targets_.size() == tokens_.size();
  if (!fits) {
    throw InputError(fmt::format("batches: {} tokens and {} targets are not {} steps of {} windows of {}", size,
                                 targets_.size(), steps, rows, seq));
  }
  const auto negative = [](std::int32_t token) { return token < 0; };
  if (std::ranges::any_of(tokens_, negative) || std::ranges::any_of(targets_, negative)) {
    throw InputError("batches: a token id is negative");
  }
}

std::uint64_t FixedBatches::digest() const {
  Digest digest;
  digest.add(tokens_);
  digest.add(targets_);
  return digest.value();
}

Batch FixedBatches::batch(std::int64_t step) const {
  if (step < 0 || step >= steps_) {
    throw InputError(fmt::format("step {} has no batch: there are batches for {} steps", step, steps_),
                     fmt::format("train.steps of at most {}", steps_));
  }
  Batch batch = empty_batch(rows_, seq_);
  std::copy_n(tokens_.begin() + step * rows_ * seq_, rows_ * seq_, batch.tokens.begin());
  std::copy_n(targets_.begin() + step * rows_ * seq_, rows_ * seq_, batch.targets.begin());
  return batch;
}

ValidationBatches::ValidationBatches(std::shared_ptr<const Corpus> corpus, std::int64_t rows, std::int64_t seq,
                                     std::optional<std::int64_t> limit)
    : corpus_(std::move(corpus)), rows_(rows), seq_(seq) {
  CLEAVE_ASSERT(rows > 0 && seq > 0, "batch of {} windows of {}", rows, seq);
  windows_ = std::max<std::int64_t>(0, corpus_->validation_tokens() - 1) / seq;
  if (limit && *limit < count()) windows_ = std::max<std::int64_t>(0, *limit) * rows;
}

Batch ValidationBatches::batch(std::int64_t index) const {
  CLEAVE_ASSERT(index >= 0 && index < count(), "validation batch {} of {}", index, count());
  const std::int64_t first = index * rows_;
  Batch batch = empty_batch(std::min(rows_, windows_ - first), seq_);
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    copy_window(corpus_->tokens(), corpus_->train_tokens() + (first + row) * seq_, row, batch);
  }
  return batch;
}

}  // namespace cleave::data
