// What a run's state, its model and its moments come back as, and which files are none of its own; and a checkpoint for
// which there are no descriptors now waits for some, and says so when none come.
#include "cleave/server/checkpointing.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/checkpoint/snapshot.hpp"
#include "support/one_layer.hpp"

namespace cleave::server {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const model::ModelConfig kModel = testing_support::one_layer();

ParameterStore parameters() { return testing_support::one_layer_parameters(); }

/// Every descriptor that this process may have, but for so many.
class AllDescriptors {
 public:
  explicit AllDescriptors(int left) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit fewer = before_;
    fewer.rlim_cur = 64;
    ::setrlimit(RLIMIT_NOFILE, &fewer);
    for (int descriptor = 0; (descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;)
      taken_.push_back(descriptor);
    for (; left > 0 && !taken_.empty(); --left) give_back();
  }
  ~AllDescriptors() {
    while (!taken_.empty()) give_back();
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }
  AllDescriptors(const AllDescriptors&) = delete;
  AllDescriptors& operator=(const AllDescriptors&) = delete;
  [[nodiscard]] std::size_t count() const { return taken_.size(); }
  void give_back() {
    ::close(taken_.back());
    taken_.pop_back();
  }

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

TEST(SaveCheckpoint, WaitsForDescriptors) {
  const fs::path folder = fs::path(testing::TempDir()) / ("cleave-checkpointing-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const ParameterStore store = parameters();
  // The sanitizers take a descriptor to look at a type that they have not seen: they are shown the types of a failure.
  EXPECT_THROW(save_checkpoint("/proc/nowhere/file.h5", store, kModel, {.step = 1, .seed = 3, .tokenizer = {}}),
               EnvironmentError);
  for (const int left : {0, 1, 2}) {
    const fs::path file = folder / ("waits-" + std::to_string(left) + ".h5");
    // The thread begins before the descriptors are gone: the sanitizers need one whenever they look at new memory.
    std::atomic<bool> begun = false;
    std::atomic<AllDescriptors*> taken = nullptr;
    std::thread other([&] {
      begun = true;
      begun.notify_one();
      taken.wait(nullptr);
      AllDescriptors& all = *taken;
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      while (all.count() > 0) all.give_back();
    });
    begun.wait(false);
    AllDescriptors all(left);
    EXPECT_GT(all.count(), 20U);
    taken = &all;
    taken.notify_one();
    EXPECT_NO_THROW(save_checkpoint(file, store, kModel, {.step = 1, .seed = 3, .tokenizer = {}}));
    other.join();
    ParameterStore again = parameters();
    EXPECT_EQ(load_checkpoint(file, again, kModel).step, 1);
  }
  fs::remove_all(folder);
}

class LoadCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  // What is wrong with it, as a run of `config` sees it.
  static std::string fault_of(const fs::path& file, const model::ModelConfig& config = kModel) {
    ParameterStore store = parameters();
    try {
      (void)load_checkpoint(file, store, config);
    } catch (const InputError& error) { return error.what(); }
    ADD_FAILURE() << "no InputError";
    return {};
  }

  fs::path folder_ = fs::path(testing::TempDir()) / ("cleave-load-" + std::to_string(::getpid()));
  fs::path file_ = folder_ / "checkpoint-4.h5";
};

TEST_F(LoadCheckpoint, GivesBackWhatWasSaved) {
  ParameterStore store = parameters();
  Parameter& trained = store.parameters()[1];
  trained.exp_avg.assign(trained.value.size(), 0.25F);
  trained.exp_avg_sq.assign(trained.value.size(), 0.5F);
  save_checkpoint(file_, store, kModel,
                  {.step = 4, .seed = ~std::uint64_t{0}, .tokenizer = "t", .settings = "s", .parts = "p"});
  ParameterStore again = testing_support::one_layer_parameters(7);
  for (Parameter& parameter : again.parameters()) {  // trained until now, and frozen by then
    parameter.exp_avg.assign(parameter.value.size(), 9.0F);
    parameter.exp_avg_sq = parameter.exp_avg;
  }
  ASSERT_NE(again.hash(), store.hash());
  const RunState state = load_checkpoint(file_, again, kModel);
  EXPECT_EQ(state.step, 4);
  EXPECT_EQ(state.seed, ~std::uint64_t{0});
  EXPECT_EQ(state.tokenizer, "t");
  EXPECT_EQ(state.settings, "s");
  EXPECT_EQ(state.parts, "p");
  EXPECT_EQ(again.hash(), store.hash());
  for (std::size_t i = 0; i < store.parameters().size(); ++i) {
    EXPECT_EQ(again.parameters()[i].exp_avg, store.parameters()[i].exp_avg) << store.parameters()[i].name;
    EXPECT_EQ(again.parameters()[i].exp_avg_sq, store.parameters()[i].exp_avg_sq);
  }
}

TEST_F(LoadCheckpoint, RefusesWhatIsNoCheckpointOfThisModel) {
  save_checkpoint(file_, parameters(), kModel, {.step = 4, .seed = 3, .tokenizer = {}});
  model::ModelConfig other = kModel;
  other.norm_eps *= 2;
  EXPECT_THAT(fault_of(file_, other), HasSubstr("checkpoint of another model: norm_eps"));
  other = kModel;
  other.tie_embeddings = false;
  EXPECT_THAT(fault_of(file_, other), HasSubstr("tie_word_embeddings is 1 there and 0 here"));
  EXPECT_THAT(fault_of(fs::path(CLEAVE_SOURCE_DIR) / "tests/golden/gpt2_tiny.h5"), HasSubstr("is a reference file"));
  // Of a program that does not say how far it came.
  for (const char* present : {"step", "seed"}) {
    checkpoint::SnapshotView view{.attributes = attributes_of(kModel),
                                  .state = {{present, std::int64_t{1}}},
                                  .model = {},
                                  .exp_avg = {},
                                  .exp_avg_sq = {}};
    const ParameterStore store = parameters();
    for (const Parameter& p : store.parameters()) view.model.push_back({p.name, p.shape(), p.value});
    checkpoint::write_snapshot(file_, view);
    EXPECT_THAT(fault_of(file_), HasSubstr("lacks step or seed"));
  }
}

TEST(ModelAttributes, SayAllOfTheModel) {
  model::ModelConfig config = kModel;
  config.family = "llama";
  config.n_head = 4;
  config.n_kv_head = 2;
  config.tie_embeddings = false;
  config.norm_eps = 0.125;
  config.rope_theta = 777;
  const checkpoint::Attributes attributes = attributes_of(config);
  EXPECT_EQ(attributes_of(config_from(attributes, "f")), attributes);
  EXPECT_EQ(config_from(attributes, "f").rope_theta, 777);
  EXPECT_EQ(config_from(attributes, "f").norm_eps, 0.125);
  for (const char* needed : {"family", "vocab_size", "n_layer", "n_head", "n_kv_head", "d_model", "d_ff", "seq_len",
                             "max_pos", "tie_word_embeddings"}) {
    checkpoint::Attributes fewer = attributes;
    fewer.erase(needed);
    EXPECT_THROW((void)config_from(fewer, "f"), InputError) << needed;
  }
  EXPECT_EQ(other_than(config, attributes), "");
  for (const char* name : {"n_head", "n_kv_head", "norm_eps", "rope_theta"}) {
    checkpoint::Attributes changed = attributes;
    changed[name] = std::int64_t{1};
    EXPECT_THAT(other_than(config, changed), HasSubstr(name));
  }
  // A model with a table of positions does not turn anything.
  config.family = "gpt2";
  checkpoint::Attributes changed = attributes_of(config);
  changed["rope_theta"] = 1.0;
  EXPECT_EQ(other_than(config, changed), "");
}

TEST(SaveCheckpoint, OtherFailuresAreToldAtOnce) {
  const ParameterStore store = parameters();
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_THROW(save_checkpoint("/proc/nowhere/file.h5", store, kModel, {.step = 1, .seed = 3, .tokenizer = {}}),
               EnvironmentError);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(2));
}

}  // namespace
}  // namespace cleave::server
