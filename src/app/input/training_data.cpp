// Text, token files and reference batches.
#include "input/training_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cleave/base/error.hpp"
#include "cleave/checkpoint/reference.hpp"
#include "cleave/data/text.hpp"
#include "cleave/data/tokenizer.hpp"
#include "cleave/data/tokens.hpp"

namespace cleave::app {

namespace {

// Issues of the data component name entries; the file they stand in is the input's.
void throw_if_any(const Input& input, std::vector<Issue> issues) {
  if (issues.empty()) return;
  for (Issue& issue : issues) {
    if (issue.file.empty()) issue.file = input.name;
  }
  throw InputError(std::move(issues));
}

void settle_vocabulary(Input& input, std::int64_t needed, const char* what) {
  model::ModelConfig& config = input.step.model;
  if (!input.model.vocab_given) {
    config.vocab_size = needed;
    note_effective(input, "vocab_size", needed, what);
  } else if (config.vocab_size < needed) {
    throw fault_at(input, "model.vocab_size",
                   fmt::format("{} is less than the {} that {} has", config.vocab_size, needed, what));
  }
}

}  // namespace

void require_file(const data::SourceEntry& entry, std::string_view key) {
  std::error_code error;
  const bool there = std::filesystem::exists(entry.resolved, error);
  if (there && std::filesystem::is_regular_file(entry.resolved, error)) return;
  throw InputError({Issue{.file = entry.file,
                          .line = entry.line,
                          .key = std::string(key),
                          .message = fmt::format("{}: {}", entry.as_written, there ? "not a file" : "no such file"),
                          .hint = {}}});
}

TrainingData load_training_data(Input& input) {
  TrainingData loaded;
  const DataInput& in = input.data;
  const std::int64_t rows = input.step.batch, seq = input.step.model.seq_len;
  std::vector<Issue> issues;

  if (in.kind == DataKind::batches) {
    require_file(in.sources.front(), "data.batches");
    checkpoint::ReferenceBatches batches = [&] {
      try {
        return checkpoint::read_batches(in.sources.front().resolved);
      } catch (const InputError& error) { throw fault_at(input, "data.batches", error.what()); }
    }();
    if (batches.batch != rows || batches.seq_len != seq) {
      throw fault_at(input, "data.batches",
                     fmt::format("the file has batches of {} sequences of {} tokens, the run wants {} of {}",
                                 batches.batch, batches.seq_len, rows, seq),
                     "set train.batch and model.seq_len to what the file has");
    }
    if (input.train.steps > batches.steps)
      throw fault_at(input, "train.steps",
                     fmt::format("{} is more than the {} batches of {}", input.train.steps, batches.steps,
                                 in.sources.front().as_written));
    const std::int32_t largest = std::max(*std::max_element(batches.tokens.begin(), batches.tokens.end()),
                                          *std::max_element(batches.targets.begin(), batches.targets.end()));
    settle_vocabulary(input, largest + 1, "the file of batches");
    loaded.summary = fmt::format("{} reference batches of {} x {} tokens", batches.steps, rows, seq);
    loaded.batches = std::make_unique<data::FixedBatches>(batches.steps, rows, seq, std::move(batches.tokens),
                                                          std::move(batches.targets));
    if (input.train.eval_every > 0)
      loaded.not_evaluated =
          fmt::format("train.eval_every is {}, but nothing is evaluated: data.batches has no validation part",
                      input.train.eval_every);
    return loaded;
  }

  data::TokenArray tokens;
  if (in.kind == DataKind::text) {
    const data::Text text = data::load_text(in.sources, "data.text", issues, data::kMostNames, input.output);
    throw_if_any(input, std::move(issues));
    const auto tokenizer =
        in.tokenizer == TokenizerKind::byte ? data::make_byte_tokenizer() : data::make_char_tokenizer(text);
    settle_vocabulary(input, tokenizer->vocab_size(), "the tokenizer");
    tokens = tokenizer->encode(text);
    loaded.tokenizer = tokenizer->to_text();
    loaded.summary = fmt::format("{} files, {} bytes, {} tokens of {} kinds", text.parts.size(), text.bytes.size(),
                                 tokens.size(), tokenizer->vocab_size());
  } else {
    tokens = data::load_tokens(in.sources.front(), "data.tokens", issues);
    throw_if_any(input, std::move(issues));
    settle_vocabulary(input, tokens.max() + 1, "the token file");
    loaded.summary = fmt::format("{} tokens", tokens.size());
  }
  const auto corpus = std::make_shared<const data::Corpus>(std::move(tokens), in.val_fraction);
  if (const auto shortage = corpus->shortage(seq)) {
    throw_if_any(input, {Issue{.file = in.sources.front().file,
                               .line = in.sources.front().line,
                               .key = in.kind == DataKind::text ? "data.text" : "data.tokens",
                               .message = *shortage,
                               .hint = "more text, another data.val_fraction, or a shorter model.seq_len"}});
  }
  loaded.batches = std::make_unique<data::CorpusBatches>(corpus, rows, seq, input.train.seed);
  if (input.train.eval_every > 0 && corpus->validation_tokens() > seq) {
    const data::ValidationBatches validation(
        corpus, rows, seq, input.train.eval_batches > 0 ? std::optional(input.train.eval_batches) : std::nullopt);
    for (std::int64_t i = 0; i < validation.count(); ++i) loaded.validation.push_back(validation.batch(i));
  } else if (input.train.eval_every > 0) {
    loaded.not_evaluated = fmt::format(
        "train.eval_every is {}, but nothing is evaluated: the validation part has {} tokens, and a window of "
        "{} needs {} (data.val_fraction)",
        input.train.eval_every, corpus->validation_tokens(), seq, seq + 1);
  }
  return loaded;
}

}  // namespace cleave::app
