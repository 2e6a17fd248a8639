// Reference files: those of tests/golden are read whole; parts that are absent or do not fit are named.
#include "cleave/checkpoint/reference.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "cleave/checkpoint/snapshot.hpp"
#include "temp_folder.hpp"

namespace cleave::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kGolden = fs::path(CLEAVE_SOURCE_DIR) / "tests" / "golden";

TEST(Reference, TinyFileHasTheKnownValues) {
  const Reference reference = read_reference(kGolden / "gpt2_tiny.h5");
  EXPECT_EQ(find_text(reference.attributes, "family"), "gpt2");
  EXPECT_EQ(find_integer(reference.attributes, "n_head"), 2);
  EXPECT_EQ(find_number(reference.attributes, "norm_eps"), 1e-5);
  EXPECT_EQ(reference.batches.steps, 10);
  EXPECT_EQ(reference.batches.batch, 2);
  EXPECT_EQ(reference.batches.seq_len, 5);
  EXPECT_EQ(reference.batches.tokens.size(), 100u);
  // As h5dump and h5py print them.
  EXPECT_THAT(std::vector(reference.batches.tokens.begin(), reference.batches.tokens.begin() + 10),
              ElementsAre(4, 4, 1, 5, 1, 5, 3, 6, 6, 4));
  EXPECT_THAT(std::vector(reference.batches.targets.begin(), reference.batches.targets.begin() + 5),
              ElementsAre(4, 1, 5, 1, 1));
  EXPECT_EQ(reference.logits_step0.size(), 55u);
  EXPECT_EQ(reference.logits_step0.front(), 1.0025392025996052);
  EXPECT_EQ(reference.logits_step0.back(), -0.7877714701652336);
  ASSERT_EQ(reference.loss.size(), 10u);
  EXPECT_NEAR(reference.loss[0], 2.7489, 5e-6);
  EXPECT_NEAR(reference.loss[9], 2.47879, 5e-6);
  // Keys have no gradient through their bias: the middle third of c_attn.bias.
  const auto& grad =
      *std::ranges::find(reference.grads_step0, "transformer.h.0.attn.c_attn.bias", &ReferenceTensor::name);
  EXPECT_EQ(grad.noise, (NoiseRange{8, 16}));
  EXPECT_EQ(grad.values.size(), 24u);
  EXPECT_LT(std::abs(grad.values[10]), 1e-12);
  EXPECT_TRUE(find_number(grad.attributes, "fp32_rel_l2_err").has_value());
}

TEST(Reference, EveryFileIsConsistent) {
  for (const char* name :
       {"gpt2_tiny", "gpt2_small", "gpt2_clip", "opt_tiny", "opt_small", "llama_tiny", "llama_gqa", "llama_mha"}) {
    SCOPED_TRACE(name);
    const Reference reference = read_reference(kGolden / (std::string(name) + ".h5"));
    std::int64_t parameters = 0;
    for (const Tensor& tensor : reference.init) parameters += static_cast<std::int64_t>(tensor.data.size());
    EXPECT_EQ(parameters, find_integer(reference.attributes, "n_params"));
    EXPECT_EQ(reference.vocab_size, find_integer(reference.attributes, "vocab_size"));
    EXPECT_EQ(reference.grads_step0.size(), reference.init.size());
    EXPECT_EQ(reference.params_final.size(), reference.init.size());
    EXPECT_FALSE(reference.loss_fp32.empty());
    // The gradients' norm is the stated one, so they were read right, at full or at single precision.
    double squares = 0;
    for (const ReferenceTensor& grad : reference.grads_step0) {
      for (const double value : grad.values) squares += value * value;
    }
    EXPECT_NEAR(std::sqrt(squares), reference.grad_norm[0], 1e-6 * reference.grad_norm[0]);
    EXPECT_EQ(static_cast<std::int64_t>(reference.logits_step0.size()),
              reference.batches.seq_len * reference.vocab_size);
    const ReferenceBatches batches = read_batches(kGolden / (std::string(name) + ".h5"));
    EXPECT_EQ(batches.tokens, reference.batches.tokens);
    EXPECT_EQ(batches.targets, reference.batches.targets);
    // Its parameters can start a run.
    const Snapshot snapshot = read_snapshot(kGolden / (std::string(name) + ".h5"));
    EXPECT_EQ(snapshot.model, reference.init);
    EXPECT_TRUE(snapshot.exp_avg.empty());
    EXPECT_EQ(read_header(kGolden / (std::string(name) + ".h5")).kind, FileKind::reference);
  }
}

class EditedReference : public TempFolder {
 protected:
  void SetUp() override {
    if (!python_has("h5py, numpy")) GTEST_SKIP() << "needs /usr/bin/python3 with h5py and numpy";
    TempFolder::SetUp();
  }
};

TEST_F(EditedReference, OtherWaysToWriteTheSameAreTaken) {
  const Reference plain = read_reference(kGolden / "gpt2_tiny.h5");
  ASSERT_TRUE(edit_copies(folder_, kGolden / "gpt2_tiny.h5", {R"(
def replace(name, **options):
    data = f[name][...]
    del f[name]
    f.create_dataset(name, data=data, **options)
f.attrs['family'] = 'gpt2'                      # a string of variable length
f.attrs['n_head'] = np.int32(2)
f.attrs['lr'] = np.float32(f.attrs['lr'])
f.attrs['tie_word_embeddings'] = True
f.attrs['new'] = np.zeros((2, 3))               # not a scalar
replace('/batches/tokens', dtype='>i8')
replace('/batches/targets', dtype='u2')
replace('/expected/loss', dtype='f8', chunks=(5,), compression='gzip')
replace('/init/transformer.wte.weight', dtype='>f4')
del f['/expected/loss_fp32'], f['/expected/grad_norm_fp32'], f['/expected/loss_after_fp32']
)"}));
  const Reference other = read_reference(folder_ / "0.h5");
  EXPECT_EQ(find_text(other.attributes, "family"), "gpt2");
  EXPECT_EQ(find_integer(other.attributes, "n_head"), 2);
  EXPECT_EQ(find_integer(other.attributes, "tie_word_embeddings"), 1);
  EXPECT_FALSE(other.attributes.contains("new"));
  EXPECT_EQ(other.batches.tokens, plain.batches.tokens);
  EXPECT_EQ(other.batches.targets, plain.batches.targets);
  EXPECT_EQ(other.loss, plain.loss);
  EXPECT_EQ(other.init, plain.init);
  EXPECT_TRUE(other.loss_fp32.empty());
  EXPECT_EQ(other.loss_after_fp32, std::nullopt);
}

TEST_F(EditedReference, WhatIsAbsentOrDoesNotFitIsNamed) {
  struct Case {
    std::string edit, message;
  };
  const std::vector<Case> cases = {
      {"del f['/expected/lr']", "/expected/lr: no such dataset"},
      {"del f['/init']", "/init: no such group"},
      {"del f['/expected/params_final/transformer.wte.weight']",
       "/expected/params_final/transformer.wte.weight: no such dataset"},
      {"del f['/expected/loss']; f['/expected/loss'] = np.zeros(9)", "/expected/loss: is [9], not [10]"},
      {"del f['/expected/loss']; f['/expected/loss'] = np.zeros(10, 'i4')",
       "/expected/loss: does not hold floating-point numbers"},
      {"f['/batches/tokens'][0, 0, 0] = 11", "/batches/tokens: token id 11 is not in [0, "},
      {"f['/batches/targets'][0, 0, 0] = -1", "/batches/targets: token id -1"},
      {"f.attrs['steps'] = np.int64(11)", "/batches/tokens: is [10, 2, 5], but the attribute steps is 11"},
      {"f['/expected/grads_step0/transformer.h.0.attn.c_attn.bias'].attrs['noise_end'] = np.int64(25)",
       "/expected/grads_step0/transformer.h.0.attn.c_attn.bias: noise_begin and noise_end"},
      {"del f['/batches/tokens']; f['/batches/tokens'] = np.zeros((10, 2), 'i4')",
       "/batches/tokens: is [10, 2], not [steps, batch, sequence]"},
  };
  std::vector<std::string> edits;
  for (const Case& c : cases) edits.push_back(c.edit);
  ASSERT_TRUE(edit_copies(folder_, kGolden / "gpt2_tiny.h5", edits));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string name = std::to_string(i) + ".h5";
    EXPECT_THAT(input_error([&] { (void)read_reference(folder_ / name); }), HasSubstr(name + ": " + cases[i].message))
        << cases[i].edit;
  }
}

}  // namespace
}  // namespace cleave::checkpoint
