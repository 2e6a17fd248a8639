// Which checkpoints of a run a process goes back to.
#include "output/earlier_checkpoints.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cleave/checkpoint/folder.hpp"
#include "cleave/server/checkpointing.hpp"
#include "output/verdict.hpp"
#include "support/one_layer.hpp"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;

const model::ModelConfig kModel = testing_support::one_layer();
const std::string kSettings = R"({"train.lr":"0.01","train.seed":"3"})";

class EarlierCheckpointsTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  void write(std::int64_t step, const std::string& settings = kSettings) {
    store_.parameters()[0].value[0] = static_cast<float>(step);
    server::save_checkpoint(checkpoint::checkpoint_path(folder_, step), store_, kModel,
                            {.step = step, .seed = 3, .tokenizer = {}, .settings = settings, .parts = "who"});
  }
  fs::path folder_ = fs::temp_directory_path() / ("cleave-earlier-" + std::to_string(::getpid()));
  server::ParameterStore store_ = testing_support::one_layer_parameters();
  std::vector<std::string> warnings_;
  EarlierCheckpoints earlier_{folder_, store_, kModel, kSettings,
                              [this](const std::string& text) { warnings_.push_back(text); }};
};

TEST_F(EarlierCheckpointsTest, TheNearestBeforeOrElseTheEarliest) {
  EXPECT_EQ(earlier_.find(3, 10), std::nullopt);
  for (const std::int64_t step : {4, 6, 8, 10, 12}) write(step);
  EXPECT_EQ(earlier_.find(9, 10), 8);
  EXPECT_EQ(earlier_.find(8, 10), 8);
  EXPECT_EQ(earlier_.find(7, 10), 6);
  EXPECT_EQ(earlier_.find(3, 10), 4);
  EXPECT_EQ(earlier_.find(1, 4), std::nullopt);
  EXPECT_TRUE(warnings_.empty());
  earlier_.load(6);
  EXPECT_EQ(store_.parameters()[0].value[0], 6.0F);
}

TEST_F(EarlierCheckpointsTest, NotPastADamagedOneWhereAnOlderIsThere) {
  for (const std::int64_t step : {4, 6, 8}) write(step);
  fs::resize_file(checkpoint::checkpoint_path(folder_, 6), 1000);
  EXPECT_EQ(earlier_.find(7, 10), 4);
  EXPECT_EQ(warnings_.size(), 1U);
}

// The steps from there on would be run again with what the input says now.
TEST_F(EarlierCheckpointsTest, NotPastAChangeOfSettings) {
  write(4);
  write(5, R"({"train.lr":"0.02","train.seed":"3"})");
  write(6);
  EXPECT_EQ(earlier_.find(4, 10), 6);
  EXPECT_EQ(warnings_.size(), 1U);
  write(6, "");  // of a program that wrote none
  EXPECT_EQ(earlier_.find(4, 10), std::nullopt);
}

TEST_F(EarlierCheckpointsTest, WhatACheckpointSaysOfPartsIsReadBack) {
  write(4);
  EXPECT_EQ(server::load_checkpoint(checkpoint::checkpoint_path(folder_, 4), store_, kModel).parts, "who");
}

TEST_F(EarlierCheckpointsTest, AVerdictThatCannotBeWrittenEndsNothing) {
  earlier_.condemn(7, {DeviceId(2)});
  ASSERT_TRUE(find_verdict(folder_));
  EXPECT_EQ(find_verdict(folder_)->after_step, 7);
  fs::remove_all(folder_);
  EXPECT_NO_THROW(earlier_.condemn(8, {DeviceId(2)}));
  EXPECT_EQ(warnings_.size(), 1U);
}

}  // namespace
}  // namespace cleave::app
