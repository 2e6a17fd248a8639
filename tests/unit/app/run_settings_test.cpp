// Settings survive the checkpoint, and every one that bits depend on shows when it changes.
#include "input/run_settings.hpp"

#include <gmock/gmock.h>

#include <functional>

namespace cleave::app {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TrainingData data_of(std::int32_t last) {
  TrainingData data;
  data.batches = std::make_unique<data::FixedBatches>(1, 1, 2, std::vector<std::int32_t>{1, 2},
                                                      std::vector<std::int32_t>{2, last});
  return data;
}

Input input() {
  Input in;
  in.data.kind = DataKind::text;
  in.step.freeze = {"wte.*"};
  return in;
}

TEST(RunSettings, ComeBackFromText) {
  const RunSettings settings = run_settings(input(), data_of(3), "haswell");
  EXPECT_EQ(settings_from(to_text(settings)), settings);
  EXPECT_THAT(settings_from(""), IsEmpty());
  EXPECT_THAT(settings_from("[1]"), IsEmpty());
  EXPECT_THAT(settings_from("{\"train.lr\": 1}"), IsEmpty());
}

TEST(RunSettings, EveryOneThatBitsDependOnShows) {
  const RunSettings before = run_settings(input(), data_of(3), "haswell");
  const auto change = [&](const std::function<void(Input&)>& edit) {
    Input in = input();
    edit(in);
    return differences(before, run_settings(in, data_of(3), "haswell"));
  };
  EXPECT_THAT(change([](Input&) {}), IsEmpty());
  EXPECT_THAT(change([](Input& in) { in.train.lr = 0.5; }), ElementsAre(StartsWith("train.lr ")));
  EXPECT_THAT(change([](Input& in) { in.train.min_lr = 0.25; }), ElementsAre(StartsWith("train.min_lr ")));
  EXPECT_THAT(change([](Input& in) { in.train.warmup_steps = 9; }), ElementsAre(StartsWith("train.warmup_steps ")));
  EXPECT_THAT(change([](Input& in) { in.train.lr_decay_steps = 9; }), ElementsAre(StartsWith("train.lr_decay_steps ")));
  EXPECT_THAT(change([](Input& in) { in.step.batch = 99; }), ElementsAre(StartsWith("train.batch ")));
  EXPECT_THAT(change([](Input& in) { in.train.seed = 99; }), ElementsAre(StartsWith("train.seed ")));
  EXPECT_THAT(change([](Input& in) { in.train.beta1 = 0.5; }), ElementsAre(StartsWith("train.beta1 ")));
  EXPECT_THAT(change([](Input& in) { in.train.beta2 = 0.5; }), ElementsAre(StartsWith("train.beta2 ")));
  EXPECT_THAT(change([](Input& in) { in.train.adam_eps = 0.5; }), ElementsAre(StartsWith("train.adam_eps ")));
  EXPECT_THAT(change([](Input& in) { in.train.weight_decay = 0.5; }), ElementsAre(StartsWith("train.weight_decay ")));
  EXPECT_THAT(change([](Input& in) { in.train.grad_clip = 0.5; }), ElementsAre(StartsWith("train.grad_clip ")));
  EXPECT_THAT(change([](Input& in) { in.step.freeze.clear(); }), ElementsAre("train.freeze [wte.*] -> []"));
  EXPECT_THAT(change([](Input& in) { in.step.wire = DType::bf16; }), ElementsAre("plan.wire fp32 -> bf16"));
  EXPECT_THAT(change([](Input& in) { in.data.val_fraction = 0.5; }), ElementsAre("data.val_fraction 0.1 -> 0.5"));
  EXPECT_THAT(differences(before, run_settings(input(), data_of(4), "haswell")), ElementsAre(StartsWith("data ")));
  EXPECT_THAT(differences(before, run_settings(input(), data_of(3), "generic")),
              ElementsAre("server.gemm_kernels haswell -> generic"));
}

TEST(RunSettings, WhatBitsDoNotDependOnMayChange) {
  const RunSettings before = run_settings(input(), data_of(3), "haswell");
  Input in = input();
  in.train.steps = 7;
  in.train.eval_every = 3;
  in.step.seed = 9;
  in.step.layout.row_groups = 4;
  in.verify.mode = server::VerifyMode::all;
  in.checkpoint_keep = 9;
  EXPECT_THAT(differences(before, run_settings(in, data_of(3), "haswell")), IsEmpty());
}

// An older program may have written fewer.
TEST(RunSettings, AKeyThatTheCheckpointDoesNotHaveIsNoDifference) {
  EXPECT_THAT(differences({{"train.seed", "1"}}, run_settings(input(), data_of(3), "haswell")), IsEmpty());
}

}  // namespace
}  // namespace cleave::app
