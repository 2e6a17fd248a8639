// The schedule of the learning rate and the clip of the gradient, at their edges and in between.
#include "cleave/server/training.hpp"

#include <gtest/gtest.h>

namespace cleave::server {
namespace {

TEST(LearningRate, WarmsUpAndDecays) {
  const TrainSettings s{.lr = 1.0, .min_lr = 0.2, .warmup_steps = 4, .lr_decay_steps = 14};
  for (std::int64_t step = 0; step < 4; ++step)
    EXPECT_DOUBLE_EQ(learning_rate(s, step), 0.2 * static_cast<double>(step + 1)) << "a fifth more each step";
  EXPECT_DOUBLE_EQ(learning_rate(s, 4), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(s, 9), 0.6);  // half way
  EXPECT_GT(learning_rate(s, 13), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(s, 14), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(s, 1000), 0.2);
}

TEST(LearningRate, WithoutADecayIsTheLeastOneAtOnce) {
  EXPECT_DOUBLE_EQ(learning_rate({.lr = 1.0, .min_lr = 0.2, .warmup_steps = 0, .lr_decay_steps = 0}, 0), 0.2);
  const TrainSettings s{.lr = 1.0, .min_lr = 0.2, .warmup_steps = 4, .lr_decay_steps = 4};
  EXPECT_DOUBLE_EQ(learning_rate(s, 3), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate(s, 4), 0.2);
}

TEST(ClipFactor, ShortensOnlyWhatIsTooLong) {
  EXPECT_EQ(clip_factor(1.0, 0.0), 1.0);
  EXPECT_EQ(clip_factor(1.0, 0.5), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(1.0, 1.0), 1.0 / (1.0 + 1e-6));
  EXPECT_DOUBLE_EQ(clip_factor(0.5, 2.0), 0.5 / (2.0 + 1e-6));
  EXPECT_EQ(clip_factor(0.0, 1e9), 1.0) << "no clipping";
}

}  // namespace
}  // namespace cleave::server
