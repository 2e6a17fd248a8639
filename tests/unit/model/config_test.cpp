// Presets have the published sizes, and no illegal configuration passes.
#include "cleave/model/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "tiny_models.hpp"

namespace cleave::model {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::int64_t count(const ModelConfig& config) {
  std::int64_t total = 0;
  for (const TensorSpec& spec : parameters_of(config)) total += spec.elements();
  return total;
}

TEST(Presets, HaveThePublishedParameterCounts) {
  const std::map<std::string, std::int64_t> published{
      {"gpt2-124m", 124'439'808},     {"gpt2-355m", 354'823'168},     {"gpt2-774m", 774'030'080},
      {"gpt2-1558m", 1'557'611'200},  {"opt-125m", 125'239'296},      {"opt-1.3b", 1'315'758'080},
      {"opt-2.7b", 2'651'596'800},    {"opt-6.7b", 6'658'473'984},    {"opt-13b", 12'853'473'280},
      {"opt-30b", 29'974'540'288},    {"opt-66b", 65'719'701'504},    {"llama2-7b", 6'738'415'616},
      {"llama2-13b", 13'015'864'320}, {"llama2-70b", 68'976'648'192}, {"llama3-8b", 8'030'261'248},
  };
  EXPECT_EQ(preset_names().size(), published.size());
  for (const std::string& name : preset_names()) {
    const std::optional<ModelConfig> config = find_preset(name);
    ASSERT_TRUE(config) << name;
    EXPECT_EQ(count(*config), published.at(name)) << name;
    EXPECT_THAT(find_faults(*config), IsEmpty()) << name;
  }
}

TEST(Presets, AreInTheOrderOfTheDocumentation) {
  EXPECT_THAT(preset_names(), ElementsAre("gpt2-124m", "gpt2-355m", "gpt2-774m", "gpt2-1558m", "opt-125m", "opt-1.3b",
                                          "opt-2.7b", "opt-6.7b", "opt-13b", "opt-30b", "opt-66b", "llama2-7b",
                                          "llama2-13b", "llama2-70b", "llama3-8b"));
}

TEST(Presets, UnknownNamesAreNone) {
  EXPECT_FALSE(find_preset("opt-350m"));
  EXPECT_FALSE(find_preset(""));
}

TEST(Presets, OfLlama3HaveItsOwnTheta) {
  EXPECT_EQ(find_preset("llama3-8b")->rope_theta, 500000.0);
  EXPECT_EQ(find_preset("llama2-7b")->rope_theta, 10000.0);
}

struct Fault {
  const char* what;
  void (*spoil)(ModelConfig&);
  const char* key;
};

TEST(Faults, EachIsReportedUnderItsKey) {
  const std::vector<Fault> faults{
      {"unknown family", [](ModelConfig& c) { c.family = "bert"; }, "family"},
      {"no vocabulary", [](ModelConfig& c) { c.vocab_size = 0; }, "vocab_size"},
      {"vocabulary beyond 32 bits", [](ModelConfig& c) { c.vocab_size = std::int64_t{1} << 31; }, "vocab_size"},
      {"no layer", [](ModelConfig& c) { c.n_layer = 0; }, "n_layer"},
      {"negative width", [](ModelConfig& c) { c.d_model = -16; }, "d_model"},
      {"width that overflows", [](ModelConfig& c) { c.d_model = std::int64_t{1} << 62; }, "d_model"},
      {"no feed-forward width", [](ModelConfig& c) { c.d_ff = 0; }, "d_ff"},
      {"heads that do not divide", [](ModelConfig& c) { c.n_head = c.n_kv_head = 3; }, "n_head"},
      {"odd heads under rotary positions", [](ModelConfig& c) { c.n_head = c.n_kv_head = 16; }, "n_head"},
      {"key heads that do not divide", [](ModelConfig& c) { c.n_kv_head = 3; }, "n_kv_head"},
      {"more key heads than heads", [](ModelConfig& c) { c.n_kv_head = 8; }, "n_kv_head"},
      {"no sequence", [](ModelConfig& c) { c.seq_len = 0; }, "seq_len"},
      {"too few positions", [](ModelConfig& c) { c.max_pos = c.seq_len - 1; }, "max_pos"},
      {"eps of zero", [](ModelConfig& c) { c.norm_eps = 0; }, "norm_eps"},
      {"eps not a number", [](ModelConfig& c) { c.norm_eps = std::numeric_limits<double>::quiet_NaN(); }, "norm_eps"},
      {"endless theta", [](ModelConfig& c) { c.rope_theta = HUGE_VAL; }, "rope_theta"},
  };
  for (const Fault& fault : faults) {
    ModelConfig config = tiny_llama();
    fault.spoil(config);
    const std::vector<Issue> issues = find_faults(config);
    ASSERT_EQ(issues.size(), 1U) << fault.what;
    EXPECT_EQ(issues.front().key, fault.key) << fault.what;
  }
}

TEST(Faults, GroupedQueriesAreForLlamaOnly) {
  ModelConfig config = tiny_opt();
  config.n_kv_head = 1;
  ASSERT_EQ(find_faults(config).size(), 1U);
  EXPECT_EQ(find_faults(config).front().key, "n_kv_head");
  config = tiny_llama();
  config.n_kv_head = 1;
  EXPECT_THAT(find_faults(config), IsEmpty());
}

TEST(Faults, AllAreReportedAtOnce) {
  ModelConfig config = tiny_gpt2();
  config.n_layer = -1;
  config.norm_eps = 2;
  config.seq_len = 9;
  EXPECT_EQ(find_faults(config).size(), 3U);
}

TEST(Faults, OfAStep) {
  StepOptions options;
  EXPECT_THAT(find_faults(tiny_gpt2(), options), IsEmpty());
  options.batch = 0;
  options.loss_rows = -1;
  EXPECT_EQ(find_faults(tiny_gpt2(), options).size(), 2U);
  options = {};
  options.batch = std::int64_t{1} << 40;
  EXPECT_EQ(find_faults(tiny_gpt2(), options).front().key, "batch");
}

TEST(Defaults, OfTheFeedForwardWidth) {
  EXPECT_EQ(default_d_ff("gpt2", 128), 512);
  EXPECT_EQ(default_d_ff("opt", 768), 3072);
  EXPECT_EQ(default_d_ff("llama", 128), 344);
  EXPECT_EQ(default_d_ff("llama", 96), 256);
}

}  // namespace
}  // namespace cleave::model
