// import and export of models: files that other writers leave, hostile files, and nothing lost on the way there and
// back.
//
// The other writer is a few lines of Python on struct and json alone, so that no code is shared with what is tested.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cleave/base/error.hpp"
#include "cleave/checkpoint/snapshot.hpp"
#include "cleave/model/family.hpp"
#include "cleave/server/checkpointing.hpp"
#include "commands/commands.hpp"
#include "input/model_files.hpp"
#include "unit/small_model.hpp"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Writes FILE.safetensors for each (name, dtype, shape) with element i of tensor t = (i % 97 - 48) / 2^(t % 5 + 3),
// which all three types hold exactly.
constexpr const char* kWriter = R"(
import json, struct, sys

def half(x, dtype):
    if dtype == 'F32': return struct.pack('<f', x)
    if dtype == 'F16': return struct.pack('<e', x)
    return struct.pack('<f', x)[2:]          # BF16: the upper half, exact for these numbers

def value(t, i): return (i % 97 - 48) / 2.0 ** (t % 5 + 3)

def write(path, tensors, metadata=None):
    header, data, end = {}, [], 0
    if metadata: header['__metadata__'] = metadata
    for t, name, dtype, shape in tensors:
        count = 1
        for extent in shape: count *= extent
        part = b''.join(half(value(t, i), dtype) for i in range(count))
        header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [end, end + len(part)]}
        end += len(part)
        data.append(part)
    text = json.dumps(header).encode()
    with open(path, 'wb') as out: out.write(struct.pack('<Q', len(text)) + text + b''.join(data))

def config(path, **keys):
    with open(path, 'w') as out: json.dump(keys, out)

GPT2 = dict(model_type='gpt2', vocab_size=11, n_positions=8, n_embd=6, n_layer=2, n_head=3, n_inner=None,
            activation_function='gelu_new', layer_norm_epsilon=1e-5)

def gpt2(prefix, dtype):
    names = [('wte.weight', [11, 6]), ('wpe.weight', [8, 6])]
    for l in range(2):
        for part, shape in [('ln_1.weight', [6]), ('ln_1.bias', [6]), ('attn.c_attn.weight', [6, 18]),
                            ('attn.c_attn.bias', [18]), ('attn.c_proj.weight', [6, 6]), ('attn.c_proj.bias', [6]),
                            ('ln_2.weight', [6]), ('ln_2.bias', [6]), ('mlp.c_fc.weight', [6, 24]),
                            ('mlp.c_fc.bias', [24]), ('mlp.c_proj.weight', [24, 6]), ('mlp.c_proj.bias', [6])]:
            names.append(('h.%d.%s' % (l, part), shape))
    names += [('ln_f.weight', [6]), ('ln_f.bias', [6])]
    return [(t, prefix + name, dtype, shape) for t, (name, shape) in enumerate(names)]
)";

class Transfer : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  void python(const std::string& program) {
    std::ofstream(folder_ / "program.py") << kWriter << program;
    ASSERT_EQ(std::system(("cd '" + folder_.string() + "' && /usr/bin/python3 program.py").c_str()), 0);
  }
  fs::path at(const std::string& name) const { return folder_ / name; }
  checkpoint::Snapshot imported(const std::string& from) {
    CommandLine line;
    line.files = {at(from).string(), at("out.h5").string()};
    EXPECT_EQ(import_model(line), 0);
    return checkpoint::read_snapshot(at("out.h5"));
  }
  std::string refusal(const std::string& from) {
    CommandLine line;
    line.files = {at(from).string(), at("refused.h5").string()};
    std::string text;
    try {
      (void)import_model(line);
      ADD_FAILURE() << from << " was taken";
    } catch (const InputError& error) { text = error.what(); }
    EXPECT_FALSE(fs::exists(at("refused.h5"))) << "something was written";
    return text;
  }
  void exported(const std::string& from, const std::string& to, const std::string& dtype) {
    CommandLine line;
    line.files = {at(from).string(), at(to).string()};
    line.dtype = dtype;
    EXPECT_EQ(export_model(line), 0);
  }

  fs::path folder_ = fs::temp_directory_path() / ("cleave-transfer-" + std::to_string(::getpid()) + "-" +
                                                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

const checkpoint::Tensor& tensor_of(const checkpoint::Snapshot& snapshot, const std::string& name) {
  for (const checkpoint::Tensor& tensor : snapshot.model) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return snapshot.model.front();
}

// What the writer above puts into tensor number t of a file.
void expect_written(const checkpoint::Tensor& tensor, int t) {
  for (std::size_t i = 0; i < tensor.data.size(); ++i) {
    ASSERT_EQ(tensor.data[i], static_cast<float>((static_cast<double>(i % 97) - 48.0) / std::pow(2.0, t % 5 + 3)))
        << tensor.name << "[" << i << "]";
  }
}

TEST_F(Transfer, Gpt2AsTheHubHasItInEveryType) {
  python(R"(
config('config.json', **GPT2)
for dtype in ('F32', 'F16', 'BF16'):
    write(dtype + '.safetensors', gpt2('', dtype) + [(0, 'h.%d.attn.bias' % l, 'F32', [1, 1, 8, 8]) for l in range(2)]
          + [(0, 'h.%d.attn.masked_bias' % l, 'F32', []) for l in range(2)])
write('prefixed.safetensors', gpt2('transformer.', 'F32') + [(0, 'lm_head.weight', 'F32', [11, 6])], {'format': 'pt'})
)");
  for (const char* file : {"F32.safetensors", "F16.safetensors", "BF16.safetensors", "prefixed.safetensors"}) {
    const checkpoint::Snapshot snapshot = imported(file);
    EXPECT_EQ(snapshot.model.size(), 28U) << file;
    expect_written(tensor_of(snapshot, "transformer.wte.weight"), 0);
    expect_written(tensor_of(snapshot, "transformer.h.0.attn.c_attn.weight"), 4);
    expect_written(tensor_of(snapshot, "transformer.h.1.mlp.c_proj.bias"), 25);
    expect_written(tensor_of(snapshot, "transformer.ln_f.bias"), 27);
    const model::ModelConfig config = server::config_from(snapshot.attributes, file);
    EXPECT_EQ(config.d_ff, 24);
    EXPECT_EQ(config.max_pos, 8);
    EXPECT_EQ(config.seq_len, 8);
  }
}

TEST_F(Transfer, ShardsAndFolders) {
  python(R"(
import os
os.mkdir('sharded')
config('sharded/config.json', **GPT2)
all = gpt2('transformer.', 'F32')
shards = {'model-00001-of-00002.safetensors': all[:9], 'model-00002-of-00002.safetensors': all[9:]}
for shard, tensors in shards.items(): write('sharded/' + shard, tensors)
with open('sharded/model.safetensors.index.json', 'w') as out:
    json.dump({'metadata': {}, 'weight_map': {t[1]: shard for shard, ts in shards.items() for t in ts}}, out)
)");
  const checkpoint::Snapshot folder = imported("sharded");
  expect_written(tensor_of(folder, "transformer.h.1.ln_1.weight"), 14);
  EXPECT_EQ(imported("sharded/model.safetensors.index.json"), folder);
  fs::remove(at("sharded/model-00002-of-00002.safetensors"));
  EXPECT_THAT(refusal("sharded"), HasSubstr("model-00002-of-00002.safetensors"));
}

// Every parameter of the configuration in config.json, under `rename`d names.
std::string write_all(const model::ModelConfig& config, const std::string& keys, const std::string& rename,
                      const std::string& extra = "[]") {
  std::string program = "config('config.json', " + keys + ")\nall = []\n";
  for (const model::TensorSpec& spec : model::parameters_of(config)) {
    const std::string shape =
        spec.vector ? std::to_string(spec.cols) : std::to_string(spec.rows) + ", " + std::to_string(spec.cols);
    program += "all.append((len(all), '" + spec.name + "', 'F32', [" + shape + "]))\n";
  }
  return program + "rename = " + rename +
         "\nwrite('model.safetensors', [(t, rename(n), d, s) for t, n, d, s in all] + " + extra + ")\n";
}

TEST_F(Transfer, OptUnderEitherPrefix) {
  const std::string keys =
      "model_type='opt', vocab_size=13, max_position_embeddings=7, num_hidden_layers=1, num_attention_heads=2, "
      "hidden_size=4, ffn_dim=10, word_embed_proj_dim=4, do_layer_norm_before=True, activation_function='relu'";
  model::ModelConfig config{.family = "opt",
                            .vocab_size = 13,
                            .n_layer = 1,
                            .n_head = 2,
                            .n_kv_head = 2,
                            .d_model = 4,
                            .d_ff = 10,
                            .seq_len = 7,
                            .max_pos = 7};
  for (const char* rename : {"lambda n: n.replace('model.', '', 1)", "lambda n: n"}) {
    python(write_all(config, keys, rename, "[(0, 'lm_head.weight', 'F32', [13, 4])]"));
    const checkpoint::Snapshot snapshot = imported("model.safetensors");
    expect_written(tensor_of(snapshot, "model.decoder.embed_positions.weight"), 1);
    EXPECT_EQ(tensor_of(snapshot, "model.decoder.embed_positions.weight").shape, (checkpoint::Shape{9, 4}));
    EXPECT_EQ(server::config_from(snapshot.attributes, "out.h5"), config);
  }
  // The head's name for what the embedding shares with it.
  python(write_all(config, keys, "lambda n: 'lm_head.weight' if 'embed_tokens' in n else n"));
  expect_written(tensor_of(imported("model.safetensors"), "model.decoder.embed_tokens.weight"), 0);
}

TEST_F(Transfer, LlamaWithGroupedQueries) {
  const std::string keys =
      "model_type='llama', vocab_size=9, max_position_embeddings=16, num_hidden_layers=2, num_attention_heads=4, "
      "num_key_value_heads=2, hidden_size=8, intermediate_size=12, rms_norm_eps=1e-6, hidden_act='silu'";
  model::ModelConfig config{.family = "llama",
                            .vocab_size = 9,
                            .n_layer = 2,
                            .n_head = 4,
                            .n_kv_head = 2,
                            .d_model = 8,
                            .d_ff = 12,
                            .seq_len = 16,
                            .max_pos = 16,
                            .tie_embeddings = false,
                            .norm_eps = 1e-6,
                            .rope_theta = 500000.0};
  for (const char* rope : {", rope_theta=500000.0, rope_scaling=None",
                           ", rope_parameters={'rope_type': 'default', 'rope_theta': 500000.0}"}) {
    python(write_all(config, keys + rope, "lambda n: n",
                     "[(0, 'model.layers.0.self_attn.rotary_emb.inv_freq', 'F32', [1])]"));
    const checkpoint::Snapshot snapshot = imported("model.safetensors");
    EXPECT_EQ(tensor_of(snapshot, "model.layers.1.self_attn.k_proj.weight").shape, (checkpoint::Shape{4, 8}));
    EXPECT_EQ(server::config_from(snapshot.attributes, "out.h5"), config);
  }
  python(write_all(config, keys + ", rope_scaling={'type': 'linear', 'factor': 2.0}", "lambda n: n"));
  EXPECT_THAT(refusal("model.safetensors"), HasSubstr("rope_scaling"));
}

TEST_F(Transfer, ThereAndBackLosesNothing) {
  for (const char* family : {"gpt2", "opt", "llama"}) {
    model::ModelConfig config{.family = family,
                              .vocab_size = 31,
                              .n_layer = 2,
                              .n_head = 4,
                              .n_kv_head = 4,
                              .d_model = 8,
                              .d_ff = 20,
                              .seq_len = 5,
                              .max_pos = 9,
                              .norm_eps = 1e-6};
    if (config.family == "llama") config.n_kv_head = 1;
    if (config.family == "opt") config.norm_eps = 1e-5;
    config.tie_embeddings = model::traits_of(family).default_tied;
    const server::ParameterStore parameters(
        model::build_step(config,
                          {.kind = model::StepKind::evaluate, .batch = 1, .clip = false, .freeze = {}, .loss_rows = 0}),
        5);
    server::save_checkpoint(at("a.h5"), parameters, config, {.step = 3, .seed = 5, .tokenizer = "byte"});
    fs::create_directories(at(family));
    exported("a.h5", std::string(family) + "/model.safetensors", "f32");
    const checkpoint::Snapshot before = checkpoint::read_snapshot(at("a.h5"));
    const checkpoint::Snapshot after = imported(std::string(family) + "/model.safetensors");
    EXPECT_EQ(after.model, before.model) << family;
    EXPECT_EQ(after.attributes, before.attributes) << family;
    EXPECT_EQ(checkpoint::find_text(after.state, "tokenizer"), "byte");

    // The config.json beside it says the same, for a reader that does not know our metadata.
    model::ModelConfig beside = read_hub_config(at(family) / "config.json");
    EXPECT_EQ(beside.seq_len, beside.max_pos);
    beside.seq_len = config.seq_len;
    EXPECT_EQ(beside, config) << family;

    exported("a.h5", std::string(family) + "/half.safetensors", "bf16");
    const checkpoint::Snapshot rounded = imported(std::string(family) + "/half.safetensors");
    EXPECT_EQ(rounded.model.size(), before.model.size());
    for (std::size_t i = 0; i < rounded.model.size(); ++i) {
      for (std::size_t j = 0; j < rounded.model[i].data.size(); ++j)
        ASSERT_NEAR(rounded.model[i].data[j], before.model[i].data[j], std::abs(before.model[i].data[j]) / 256 + 1e-38);
    }
  }
}

// What states a tokenizer may state one of more tokens than the model has.
TEST_F(Transfer, ATokenizerOfAnotherModelIsNotUsed) {
  const model::ModelConfig config = model::small_model("gpt2", 1, 16, 31, 4);
  server::save_checkpoint(at("a.h5"), server::ParameterStore(model::parameters_of(config)), config,
                          {.step = 0, .seed = 0, .tokenizer = "byte"});
  CommandLine line;
  line.files = {at("a.h5").string()};
  line.prompt = "~";
  line.tokens = 1;
  try {
    (void)generate(line);
    ADD_FAILURE() << "it wrote";
  } catch (const InputError& error) { EXPECT_THAT(error.what(), HasSubstr("256 tokens, and its model has 31")); }
}

TEST_F(Transfer, LeavesTheConfigurationOfAnotherModelAlone) {
  model::ModelConfig config;
  server::save_checkpoint(at("a.h5"), server::ParameterStore(model::parameters_of(config)), config, {});
  std::ofstream(at("config.json")) << R"({"model_type": "t5"})";
  exported("a.h5", "model.safetensors", "f32");
  std::ifstream in(at("config.json"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), R"({"model_type": "t5"})");
  EXPECT_FALSE(imported("model.safetensors").model.empty());  // its metadata is enough
}

TEST_F(Transfer, RefusesDamagedFiles) {
  python(R"(
config('config.json', **GPT2)
good = gpt2('', 'F32')
write('good.safetensors', good)
whole = open('good.safetensors', 'rb').read()
length = struct.unpack('<Q', whole[:8])[0]
header = json.loads(whole[8:8 + length])
data = whole[8 + length:]

def damaged(name, edit=None, length=None, keep=None):
    copy = json.loads(json.dumps(header))
    if edit: edit(copy)
    text = json.dumps(copy).encode()
    out = struct.pack('<Q', length if length is not None else len(text)) + text + data
    open(name + '.safetensors', 'wb').write(out if keep is None else out[:keep])

def shift(name, by):
    def edit(h): h[name]['data_offsets'] = [x + by for x in h[name]['data_offsets']]
    return edit
def put(name, key, value):
    def edit(h): h[name][key] = value
    return edit

damaged('long_header', length=1 << 40)
damaged('huge_header', length=(1 << 64) - 1)
damaged('overlap', shift('h.0.ln_1.bias', -4))
damaged('gap', shift('ln_f.bias', 4))
damaged('elements', put('wte.weight', 'shape', [1 << 30, 1 << 30]))
damaged('dtype', put('wte.weight', 'dtype', 'I32'))
damaged('unknown_dtype', put('wte.weight', 'dtype', 'F31'))
damaged('cut', keep=len(whole) - 5)
damaged('empty', keep=0)
write('missing.safetensors', [t for t in good if t[1] != 'h.1.mlp.c_fc.weight'])
write('surplus.safetensors', good + [(0, 'h.2.ln_1.weight', 'F32', [6])])
write('shape.safetensors', [(t, n, d, [5, 6] if n == 'wpe.weight' else s) for t, n, d, s in good])
)");
  EXPECT_FALSE(imported("good.safetensors").model.empty());
  const std::pair<const char*, const char*> cases[] = {
      {"long_header", "a header of 1099511627776 bytes"},
      {"huge_header", "a header of"},
      {"overlap", "overlapping or gapped"},
      {"gap", "overlapping or gapped"},
      {"elements", "impossible"},
      {"dtype", "is of type I32"},
      {"unknown_dtype", "F31"},
      {"cut", "cut.safetensors"},
      {"empty", "empty.safetensors"},
      {"missing", "transformer.h.1.mlp.c_fc.weight [6, 24] is missing"},
      {"surplus", "h.2.ln_1.weight [6] is not part"},
      {"shape", "wpe.weight is [5, 6], expected [8, 6]"}};
  for (const auto& [name, text] : cases) EXPECT_THAT(refusal(std::string(name) + ".safetensors"), HasSubstr(text));
}

TEST_F(Transfer, RefusesConfigurationsThatItCannotExpress) {
  python("write('model.safetensors', gpt2('', 'F32'))\n");
  EXPECT_THAT(refusal("model.safetensors"), HasSubstr("config.json"));
  const std::pair<const char*, const char*> cases[] = {
      {"model_type='t5'", "model_type"},
      {"**dict(GPT2, activation_function='relu')", "activation_function"},
      {"**dict(GPT2, n_head=5)", "n_head"},
      {"**dict(GPT2, n_embd=6.5)", "n_embd"},
      {"**dict(GPT2, vocab_size=1 << 63)", "vocab_size"},
      {"**dict(GPT2, n_layer=1 << 40)", "n_layer"},
      {"**dict(GPT2, n_embd=(1 << 61), n_inner=None)", "n_embd"},
      {"**{k: v for k, v in GPT2.items() if k != 'n_layer'}", "n_layer"},
      {"**dict(GPT2, scale_attn_by_inverse_layer_idx=True)", "scale_attn_by_inverse_layer_idx"},
      {"model_type='opt', vocab_size=13, max_position_embeddings=7, num_hidden_layers=1, num_attention_heads=2, "
       "hidden_size=4, ffn_dim=10, word_embed_proj_dim=2, do_layer_norm_before=False",
       "do_layer_norm_before"}};
  for (const auto& [keys, text] : cases) {
    python(std::string("config('config.json', ") + keys + ")\n");
    EXPECT_THAT(refusal("model.safetensors"), HasSubstr(text)) << keys;
  }
  std::ofstream(at("config.json")) << "[1, 2";
  EXPECT_THAT(refusal("model.safetensors"), HasSubstr("no JSON object"));
  constexpr std::size_t kDeep = 400'000;
  std::ofstream(at("config.json")) << R"({"model_type": "gpt2", "vocab_size": )" << std::string(kDeep, '[')
                                   << std::string(kDeep, ']') << "}";
  EXPECT_THAT(refusal("model.safetensors"), HasSubstr("nested more than"));
}

}  // namespace
}  // namespace cleave::app
