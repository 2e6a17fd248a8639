// The chain of units holds what the step graph holds; even cuts equal every cut.
#include "workload.hpp"

#include <algorithm>
#include <limits>

#include "cleave/model/family.hpp"
#include "cleave/model/graph.hpp"
#include "studies.hpp"

namespace cleave::rivals {
namespace {

TEST(Workload, HoldsTheParametersAndFlopsOfTheGraph) {
  for (const char* preset : {"gpt2-124m", "opt-125m", "llama2-7b"}) {
    model::ModelConfig config = *model::find_preset(preset);
    config.seq_len = 128;
    constexpr std::int64_t kBatch = 3;
    const Workload workload = describe_workload(config, kBatch, DType::bf16);
    const model::StepGraph graph = model::build_step(
        config, {.kind = model::StepKind::train, .batch = kBatch, .clip = false, .freeze = {}, .loss_rows = 0});
    double flops = 0;
    for (const model::Operation& op : graph.operations) {
      if (op.phase != model::Phase::update) flops += model::flops_of(op).value();
    }
    std::int64_t parameters = 0;
    for (const model::TensorSpec& tensor : graph.tensors) {
      if (tensor.role == model::TensorRole::parameter) parameters += tensor.elements();
    }
    EXPECT_NEAR(workload.step_flops() / flops, 1, 1e-4) << preset;
    EXPECT_EQ(workload.total_parameters(), parameters) << preset;
    EXPECT_EQ(workload.units.size(), static_cast<std::size_t>(config.n_layer + 2));
  }
}

// A tied embedding is counted again only where head and table lie apart.
TEST(Workload, TiedEmbeddingIsCopiedOnceApart) {
  const Workload workload = describe_workload(small_model(2), 1, DType::f32);
  const std::size_t units = workload.units.size();
  EXPECT_EQ(workload.tied_parameters, 96 * 64);
  EXPECT_EQ(workload.parameters(0, units), workload.total_parameters());
  EXPECT_EQ(workload.parameters(0, 2) + workload.parameters(2, units), workload.total_parameters() + 96 * 64);
}

TEST(Workload, BoundariesCarryOneActivation) {
  const model::ModelConfig config = small_model(3);
  const Workload workload = describe_workload(config, 4, DType::bf16);
  const auto bytes = static_cast<double>(config.seq_len * config.d_model * 2);
  EXPECT_EQ(workload.units[0].input_bytes, 0);
  EXPECT_EQ(workload.units[0].output_bytes, bytes);
  EXPECT_EQ(workload.units[2].input_bytes, bytes);
  EXPECT_EQ(workload.units.back().output_bytes, 0);
}

TEST(Workload, EvenCutsEqualEveryCut) {
  const Workload workload = describe_workload(small_model(6), 1, DType::f32);
  const std::size_t units = workload.units.size();
  const auto flops = [&](std::size_t a, std::size_t b) {
    return workload.forward_flops(a, b) + workload.backward_flops(a, b);
  };
  for (std::size_t stages = 1; stages <= 4; ++stages) {
    const std::vector<std::size_t> cuts = cut_evenly(workload, stages);
    ASSERT_EQ(cuts.size(), stages + 1);
    double found = 0, best = std::numeric_limits<double>::infinity();
    for (std::size_t s = 0; s < stages; ++s) found = std::max(found, flops(cuts[s], cuts[s + 1]));
    std::vector<bool> cut(units - 1, false);  // after unit u?
    std::fill(cut.end() - static_cast<std::ptrdiff_t>(stages - 1), cut.end(), true);
    do {
      double most = 0;
      std::size_t from = 0;
      for (std::size_t u = 1; u <= units; ++u) {
        if (u < units && !cut[u - 1]) continue;
        most = std::max(most, flops(from, u));
        from = u;
      }
      best = std::min(best, most);
    } while (std::next_permutation(cut.begin(), cut.end()));
    EXPECT_NEAR(found, best, 1e-9 * best) << stages << " stages";
  }
}

}  // namespace
}  // namespace cleave::rivals
