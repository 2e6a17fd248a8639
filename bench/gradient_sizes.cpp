// How large gradients of weights are while a small model learns a text, in powers of two: what the unit of sums over
// tokens with a 16-bit wire is chosen by (docs/numerics.md).
//
//   gradient_sizes TEXT [FAMILY] [STEPS]        default: gpt2, 1000 steps
//
// nanoGPT's small setting (4 layers of 128, 64 tokens, batch 12), computed by the server alone with fp16 operands.
// For units 2^-u: the share of elements that keep 4 bits or more, of weights whose gradient is larger than AdamW's eps,
// and the share of rows of weights that need more than 31 bits, in the mean of all steps and in the worst one.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "cleave/base/random.hpp"
#include "cleave/model/family.hpp"
#include "cleave/server/trainer.hpp"

namespace {

using namespace cleave;

constexpr std::int64_t kLayers = 4, kHeads = 4, kWidth = 128, kHidden = 512, kSeq = 64, kBatch = 12;
constexpr int kUnits[] = {28, 30, 32, 34, 36};
constexpr double kEps = 1e-8;

struct Counts {
  std::array<std::int64_t, std::size(kUnits)> precise{}, wide_rows{};
  std::array<double, std::size(kUnits)> worst_share{};
  std::int64_t above_eps = 0, elements = 0, rows = 0;
  double squares = 0, largest = 0;
};

void count(std::span<const float> gradient, std::int64_t cols, Counts& counts) {
  for (std::size_t row = 0; row < gradient.size(); row += static_cast<std::size_t>(cols)) {
    double most = 0;
    for (const float g : gradient.subspan(row, static_cast<std::size_t>(cols))) {
      const double size = std::abs(static_cast<double>(g));
      most = std::max(most, size);
      counts.squares += size * size;
      if (size < kEps) continue;
      ++counts.above_eps;
      for (std::size_t u = 0; u < std::size(kUnits); ++u) counts.precise[u] += std::ldexp(size, kUnits[u]) >= 16;
    }
    for (std::size_t u = 0; u < std::size(kUnits); ++u) counts.wide_rows[u] += std::ldexp(most, kUnits[u]) >= 0x1p31;
    counts.largest = std::max(counts.largest, most);
    ++counts.rows;
  }
  counts.elements += std::ssize(gradient);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string family = argc > 2 ? argv[2] : "gpt2";
  const std::int64_t steps = argc > 3 ? std::atoll(argv[3]) : 1000;
  std::ifstream file(argv[1], std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  if (std::ssize(text) <= kSeq) return 1;
  std::map<char, std::int32_t> codes;
  for (const char c : text) codes.emplace(c, static_cast<std::int32_t>(codes.size()));

  server::TrainerOptions options;
  options.model = {.family = family,
                   .vocab_size = std::ssize(codes),
                   .n_layer = kLayers,
                   .n_head = kHeads,
                   .n_kv_head = kHeads,
                   .d_model = kWidth,
                   .d_ff = kHidden,
                   .seq_len = kSeq,
                   .max_pos = kSeq};
  options.batch = kBatch;
  options.wire = DType::f16;
  options.train = {.steps = steps, .lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 100, .lr_decay_steps = steps};
  const model::StepGraph graph = model::build_step(options.model, sched::graph_options(options, 1));
  std::map<std::string, std::int64_t> widths;
  for (const TensorId id : graph.parameters()) {
    if (!graph.tensor(id).vector) widths[graph.tensor(id).name] = graph.tensor(id).cols;
  }
  server::ParameterStore parameters(graph, 1337);
  server::Trainer trainer(parameters, options, nullptr);
  const Random random(1, Purpose::test, 0);
  Counts all;
  for (std::int64_t step = 0; step < steps; ++step) {
    data::Batch batch{.rows = kBatch, .seq = kSeq, .tokens = {}, .targets = {}};
    for (std::int64_t s = 0; s < kBatch; ++s) {
      const auto first = random.below(static_cast<std::uint64_t>(step * kBatch + s), text.size() - kSeq);
      for (std::size_t t = first; t < first + kSeq; ++t) {
        batch.tokens.push_back(codes.at(text[t]));
        batch.targets.push_back(codes.at(text[t + 1]));
      }
    }
    Counts before = all;
    (void)trainer.step(step, batch, {}, [&](std::string_view name, std::span<const float> gradient) {
      if (const auto found = widths.find(std::string(name)); found != widths.end()) count(gradient, found->second, all);
    });
    for (std::size_t u = 0; u < std::size(kUnits); ++u)
      all.worst_share[u] = std::max(all.worst_share[u], static_cast<double>(all.wide_rows[u] - before.wide_rows[u]) /
                                                            static_cast<double>(all.rows - before.rows));
  }
  fmt::print("{}, {} steps: root of the mean square of gradients 2^{:.1f}, largest 2^{:.1f}, {:.1f} % above {}\n",
             family, steps, std::log2(std::sqrt(all.squares / static_cast<double>(all.elements))),
             std::log2(all.largest), 100.0 * static_cast<double>(all.above_eps) / static_cast<double>(all.elements),
             kEps);
  fmt::print("| unit | of those, 4 bits and more | rows beyond 31 bits, mean | worst step |\n|---|---|---|---|\n");
  for (std::size_t u = 0; u < std::size(kUnits); ++u) {
    fmt::print("| 2^-{} | {:.2f} % | {:.3f} % | {:.2f} % |\n", kUnits[u],
               100.0 * static_cast<double>(all.precise[u]) / static_cast<double>(all.above_eps),
               100.0 * static_cast<double>(all.wide_rows[u]) / static_cast<double>(all.rows),
               100.0 * all.worst_share[u]);
  }
  return 0;
}
