// cleave generate: lets a trained model go on from a prompt, in one process.
//
// The model sees the last seq_len tokens at each step. Token i of seed s is drawn with Random(s,
// generation).uniform(i), so the same command writes the same text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "cleave/base/error.hpp"
#include "cleave/base/random.hpp"
#include "cleave/checkpoint/snapshot.hpp"
#include "cleave/data/tokenizer.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "cleave/model/family.hpp"
#include "cleave/server/checkpointing.hpp"
#include "cleave/server/trainer.hpp"
#include "commands/commands.hpp"

namespace cleave::app {

namespace {

// Draws an index with probability proportional to exp(logit / temperature); temperature 0: the first largest.
std::int32_t draw(std::span<const float> logits, double temperature, double uniform) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<std::int32_t>(largest - logits.begin());
  std::vector<double> weights(logits.size());
  std::transform(logits.begin(), logits.end(), weights.begin(), [&](float z) {
    return std::exp((static_cast<double>(z) - static_cast<double>(*largest)) / temperature);
  });
  double left = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<std::int32_t>(i);
  }
  return static_cast<std::int32_t>(weights.size() - 1);
}

}  // namespace

int generate(const CommandLine& line) {
  const std::string& file = line.files.front();
  const checkpoint::Header header = checkpoint::read_header(file);
  server::TrainerOptions options;
  options.model = server::config_from(header.attributes, file);
  options.executor.verification.mode = server::VerifyMode::off;

  const std::string stored = checkpoint::find_text(header.state, "tokenizer").value_or("");
  std::unique_ptr<const data::Tokenizer> tokenizer;
  if (!stored.empty()) tokenizer = data::parse_tokenizer(stored);
  std::vector<std::int32_t> tokens;
  if (!line.prompt_tokens.empty()) {
    for (const std::int64_t id : line.prompt_tokens) {
      if (id < 0 || id >= options.model.vocab_size)
        throw InputError(
            fmt::format("--prompt-tokens: {} is outside the vocabulary of {}", id, options.model.vocab_size));
      tokens.push_back(static_cast<std::int32_t>(id));
    }
  } else {
    if (!tokenizer)
      throw InputError(fmt::format("{} has no tokenizer: its model was trained on token ids", file),
                       "give --prompt-tokens 12,345,6");
    if (tokenizer->vocab_size() > options.model.vocab_size)
      throw InputError(fmt::format("the tokenizer of {} has {} tokens, and its model has {}", file,
                                   tokenizer->vocab_size(), options.model.vocab_size),
                       "give --prompt-tokens 12,3,4");
    const std::string_view prompt = line.prompt.empty() ? std::string_view("\n") : std::string_view(line.prompt);
    try {
      tokens = tokenizer->encode(prompt).to_vector();
    } catch (const InputError& error) {
      throw InputError(fmt::format("--prompt{}: {}",
                                   line.prompt.empty() ? " is not given, and a new line stands in" : "", error.what()));
    }
  }

  // No more than will be written: a model's longest sequence would cost its whole length for every token.
  options.model.seq_len = std::min(options.model.seq_len,
                                   static_cast<std::int64_t>(tokens.size()) + std::max<std::int64_t>(line.tokens, 1));
  kernels::select_gemm_kernels(kernels::best_gemm_kernels());
  const std::vector<model::TensorSpec> specs = model::parameters_of(options.model);
  server::ParameterStore parameters{std::span(specs)};
  server::load_parameters(file, parameters);
  server::Trainer trainer(parameters, options, nullptr);

  const auto show = [&](std::span<const std::int32_t> ids) {
    if (tokenizer) {
      std::fputs(tokenizer->decode(ids).c_str(), stdout);
    } else {
      for (const std::int32_t id : ids) std::printf("%d ", id);
    }
    std::fflush(stdout);
  };
  show(tokens);
  const Random random(line.seed, Purpose::generation);
  const std::int64_t seq = options.model.seq_len, vocab = options.model.vocab_size;
  std::size_t shown = tokens.size();
  for (std::int64_t i = 0; i < line.tokens && std::ferror(stdout) == 0; ++i) {
    const auto length = static_cast<std::int64_t>(tokens.size()), seen = std::min(length, seq);
    std::vector<std::int32_t> window(static_cast<std::size_t>(seq),
                                     0);  // what stands after the last token is not looked at
    std::copy(tokens.end() - seen, tokens.end(), window.begin());
    const std::vector<float> logits = trainer.logits(window);
    const std::span<const float> last(logits.data() + (seen - 1) * vocab, static_cast<std::size_t>(vocab));
    tokens.push_back(draw(last, line.temperature, random.uniform(static_cast<std::uint64_t>(i))));
    // A character may take several byte tokens: what is not whole yet waits for the next one, four at most.
    if (tokens.size() - shown >= 4 || i + 1 == line.tokens) {
      if (tokenizer && tokenizer->kind() == "byte") {
        const std::string text = tokenizer->decode(std::span(tokens).subspan(shown));
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      } else {
        show(std::span(tokens).subspan(shown));
      }
      shown = tokens.size();
    }
  }
  std::puts("");
  return 0;
}

}  // namespace cleave::app
