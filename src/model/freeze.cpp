// See freeze.hpp; also the checks of a step's options that family.hpp declares.
#include "freeze.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cleave/model/family.hpp"

namespace cleave::model {

namespace {

/// So many that neither the count of tokens nor that of bytes leaves its type.
std::int64_t largest_batch(const ModelConfig& config) {
  constexpr double kMostBytes = 0x1p60;
  const std::int64_t most_by_tokens = ((std::int64_t{1} << 31) - 1) / config.seq_len;
  // A layer keeps fewer than 32 tensors of a model width and 8 of a feed-forward width; so do its gradients.
  const double bytes_per_sequence =
      4.0 * static_cast<double>(config.seq_len) * static_cast<double>(config.n_layer + 1) *
      (32.0 * static_cast<double>(config.d_model) + 8.0 * static_cast<double>(config.d_ff));
  return static_cast<std::int64_t>(std::min(static_cast<double>(most_by_tokens), kMostBytes / bytes_per_sequence));
}

}  // namespace

// Greedy with one point to return to: when the text after a `*` stops matching, let that `*` take one more character.
bool matches_glob(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool matches_any(const std::vector<std::string>& patterns, std::string_view text) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) { return matches_glob(pattern, text); });
}

std::vector<std::string> find_unmatched_freeze(const ModelConfig& config, const std::vector<std::string>& patterns) {
  const std::vector<TensorSpec> parameters = parameters_of(config);
  std::vector<std::string> unmatched;
  for (const std::string& pattern : patterns) {
    const auto matches = [&](const TensorSpec& spec) { return matches_glob(pattern, spec.name); };
    if (std::ranges::none_of(parameters, matches)) unmatched.push_back(pattern);
  }
  return unmatched;
}

std::vector<Issue> find_faults(const ModelConfig& config, const StepOptions& options) {
  std::vector<Issue> issues;
  const auto report = [&](const char* key, std::string message, std::string hint) {
    Issue issue;
    issue.key = key;
    issue.message = std::move(message);
    issue.hint = std::move(hint);
    issues.push_back(std::move(issue));
  };
  if (options.batch < 1) report("batch", fmt::format("{} is less than 1", options.batch), "");
  if (const std::int64_t most = largest_batch(config); options.batch > most) {
    report("batch", fmt::format("{} sequences are more than {}", options.batch, most),
           "a step has at most 2^31 - 1 tokens and 2^60 bytes of activations");
  }
  if (options.loss_rows < 0) report("loss_rows", fmt::format("{} is less than 0", options.loss_rows), "");

  const std::vector<TensorSpec> parameters = parameters_of(config);
  for (const std::string& pattern : find_unmatched_freeze(config, options.freeze)) {
    report("freeze", fmt::format("'{}' matches no parameter", pattern),
           fmt::format("names are like {}; * stands for any characters", parameters[parameters.size() / 2].name));
  }
  const auto frozen = [&](const TensorSpec& spec) { return matches_any(options.freeze, spec.name); };
  if (std::ranges::all_of(parameters, frozen)) report("freeze", "nothing is left to train", "freeze fewer parameters");
  return issues;
}

}  // namespace cleave::model
