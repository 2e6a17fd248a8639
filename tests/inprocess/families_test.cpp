// The same bits for each family and wire type, whatever the partition, the number of devices and ranks, and the clock;
// and frozen tensors that stay as they were, without a product sent for them.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <tuple>

#include "run.hpp"
#include "support/cases.hpp"

namespace cleave::testing_run {
namespace {

using testing_support::all_or_few;

class Families : public ::testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  static Setting setting() {
    Setting s;
    s.model.family = std::get<0>(GetParam());
    s.wire = std::get<1>(GetParam());
    s.steps = 2;
    s.model.tie_embeddings = model::traits_of(s.model.family).default_tied;
    if (s.model.family == "llama") s.model.n_kv_head = 2;
    return s;
  }
};

TEST_P(Families, SameBitsForAnyTiling) {
  const Setting alone = setting();
  const std::uint64_t reference = train(alone).hash;
  for (const auto& [partition, devices, ranks, clock] :
       {std::tuple{plan::Partition::automatic, 1, 1, server::ClockMode::virtual_time},
        std::tuple{plan::Partition::automatic, 7, 2, server::ClockMode::virtual_time},
        std::tuple{plan::Partition::equal, 3, 1, server::ClockMode::off},
        std::tuple{plan::Partition::rows, 5, 2, server::ClockMode::virtual_time},
        std::tuple{plan::Partition::grid, 5, 1, server::ClockMode::off},
        std::tuple{plan::Partition::paper, 4, 1, server::ClockMode::virtual_time}}) {
    Setting s = alone;
    s.partition = partition;
    s.devices = unlike_devices(devices);
    s.device_ranks = ranks;
    s.clock = clock;
    EXPECT_EQ(train(s).hash, reference) << "partition " << partition.name() << ", " << devices << " devices on "
                                        << ranks << " ranks, clock " << static_cast<int>(clock);
  }
}

TEST_P(Families, SameBitsForAnyNumberOfRowGroups) {
  const Setting whole = setting();
  const std::uint64_t reference = train(whole).hash;
  for (const auto& [groups, devices] : {std::pair{2, 0}, std::pair{3, 5}, std::pair{14, 3}, std::pair{100, 1}}) {
    Setting s = whole;
    s.row_groups = groups;
    s.devices = unlike_devices(devices);
    EXPECT_EQ(train(s).hash, reference) << groups << " row groups on " << devices << " devices";
  }
}

TEST_P(Families, TrainingChangesTheParameters) {
  EXPECT_NE(train(setting()).hash, initial_parameters(setting()).hash());
}

std::string name_of_case(const ::testing::TestParamInfo<std::tuple<const char*, DType>>& info) {
  return std::string(std::get<0>(info.param)) + "_" + std::string(name_of(std::get<1>(info.param)));
}

constexpr DType kFamilyTypes[] = {DType::f32, DType::f16, DType::bf16};
INSTANTIATE_TEST_SUITE_P(All, Families,
                         ::testing::Combine(::testing::Values("gpt2", "opt", "llama"),
                                            ::testing::ValuesIn(std::span(kFamilyTypes).first(all_or_few(3, 2)))),
                         name_of_case);

TEST(Frozen, TensorsKeepTheirBitsAndCostNoProducts) {
  Setting s;
  s.devices = unlike_devices(3);
  // The token table alone is frozen of the embedding: positions are trained, and so is all that stands above.
  s.freeze = {"transformer.wte.weight", "transformer.h.0.*"};
  const server::ParameterStore before = initial_parameters(s);
  server::ParameterStore after = initial_parameters(s);
  const Outcome frozen = train(s, after, 0, s.steps);
  for (const server::Parameter& p : before.parameters()) {
    const bool is_frozen = p.name == "transformer.wte.weight" || p.name.starts_with("transformer.h.0.");
    EXPECT_EQ(after.at(p.name).value == p.value, is_frozen) << p.name;
    EXPECT_EQ(after.at(p.name).exp_avg.empty(), is_frozen) << p.name;
  }
  const model::StepGraph graph = model::build_step(
      s.model, {.kind = model::StepKind::train, .batch = s.batch, .clip = true, .freeze = s.freeze, .loss_rows = 0});
  for (const model::Operation& op : graph.operations) {
    EXPECT_FALSE(op.name.starts_with("h.0.") && op.name.ends_with(".weight_gradient")) << op.name;
  }
  Setting alone = s;
  alone.devices.clear();
  EXPECT_EQ(train(alone).hash, frozen.hash);
}

}  // namespace
}  // namespace cleave::testing_run
