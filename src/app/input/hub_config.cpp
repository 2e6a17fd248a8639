// config.json of GPT-2, OPT and Llama, read and written.
#include <fmt/format.h>

#include <array>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "input/model_files.hpp"

namespace cleave::app {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::uintmax_t kLargestConfig = 1 << 20;

// One object of JSON, read key by key; faults are collected.
class HubReader {
 public:
  HubReader(const json& object, std::string file) : object_(object), file_(std::move(file)) {}

  void fault(const std::string& key, std::string message, std::string hint = {}) {
    issues_.push_back({.file = file_, .line = 0, .key = key, .message = std::move(message), .hint = std::move(hint)});
  }

  // The first of `keys` that is there; null counts as absent, as in transformers.
  const json* find(std::initializer_list<const char*> keys) const {
    for (const char* key : keys) {
      const auto found = object_.find(key);
      if (found != object_.end() && !found->is_null()) return &*found;
    }
    return nullptr;
  }

  std::int64_t integer(std::initializer_list<const char*> keys, std::optional<std::int64_t> otherwise = {}) {
    const json* value = find(keys);
    if (value == nullptr) {
      if (!otherwise) fault(*keys.begin(), "the file does not state it");
      return otherwise.value_or(1);
    }
    if (!value->is_number_integer() || (value->is_number_unsigned() && value->get<std::uint64_t>() >> 62 != 0)) {
      fault(*keys.begin(), fmt::format("{} is no whole number in range", value->dump()));
      return otherwise.value_or(1);
    }
    return value->get<std::int64_t>();
  }

  double number(const char* key, double otherwise) {
    const json* value = find({key});
    if (value == nullptr) return otherwise;
    if (value->is_number()) return value->get<double>();
    fault(key, fmt::format("{} is no number", value->dump()));
    return otherwise;
  }

  bool flag(const char* key, bool otherwise) {
    const json* value = find({key});
    if (value == nullptr) return otherwise;
    if (value->is_boolean()) return value->get<bool>();
    fault(key, fmt::format("{} is neither true nor false", value->dump()));
    return otherwise;
  }

  // Variants of an architecture that the family does not have.
  void must_be(const char* key, bool wanted, bool otherwise) {
    if (flag(key, otherwise) != wanted) fault(key, fmt::format("{} is not supported", !wanted));
  }
  void must_be_one_of(std::initializer_list<const char*> keys, std::initializer_list<const char*> legal) {
    const json* value = find(keys);
    if (value == nullptr) return;
    for (const char* name : legal) {
      if (*value == name) return;
    }
    fault(*keys.begin(), fmt::format("{} is not supported", value->dump()), fmt::format("only {}", *legal.begin()));
  }

  [[nodiscard]] const std::string& file() const { return file_; }
  std::vector<Issue>& issues() { return issues_; }

 private:
  const json& object_;
  std::string file_;
  std::vector<Issue> issues_;
};

void read_gpt2(HubReader& in, model::ModelConfig& c) {
  c.n_layer = in.integer({"n_layer", "num_hidden_layers"});
  c.n_head = c.n_kv_head = in.integer({"n_head", "num_attention_heads"});
  c.d_model = in.integer({"n_embd", "hidden_size"});
  c.d_ff = in.integer({"n_inner"}, 4 * std::min<std::int64_t>(c.d_model, std::int64_t{1} << 40));
  c.max_pos = in.integer({"n_positions", "max_position_embeddings", "n_ctx"});
  c.norm_eps = in.number("layer_norm_epsilon", 1e-5);
  c.tie_embeddings = in.flag("tie_word_embeddings", true);
  in.must_be_one_of({"activation_function"}, {"gelu_new", "gelu_pytorch_tanh"});
  in.must_be("scale_attn_weights", true, true);
  in.must_be("scale_attn_by_inverse_layer_idx", false, false);
}

void read_opt(HubReader& in, model::ModelConfig& c) {
  c.n_layer = in.integer({"num_hidden_layers"});
  c.n_head = c.n_kv_head = in.integer({"num_attention_heads"});
  c.d_model = in.integer({"hidden_size"});
  c.d_ff = in.integer({"ffn_dim"});
  c.max_pos = in.integer({"max_position_embeddings"});
  c.norm_eps = 1e-5;  // PyTorch's own; the format has no key for it
  c.tie_embeddings = in.flag("tie_word_embeddings", true);
  in.must_be_one_of({"activation_function"}, {"relu"});
  in.must_be("do_layer_norm_before", true, true);
  in.must_be("enable_bias", true, true);
  in.must_be("layer_norm_elementwise_affine", true, true);
  in.must_be("_remove_final_layer_norm", false, false);
  if (in.integer({"word_embed_proj_dim"}, c.d_model) != c.d_model)
    in.fault("word_embed_proj_dim", "embeddings of another width than hidden_size are not supported");
}

void read_llama(HubReader& in, model::ModelConfig& c) {
  c.n_layer = in.integer({"num_hidden_layers"});
  c.n_head = in.integer({"num_attention_heads"});
  c.n_kv_head = in.integer({"num_key_value_heads"}, c.n_head);
  c.d_model = in.integer({"hidden_size"});
  c.d_ff = in.integer({"intermediate_size"});
  c.max_pos = in.integer({"max_position_embeddings"});
  c.norm_eps = in.number("rms_norm_eps", 1e-6);
  c.rope_theta = in.number("rope_theta", 10000.0);
  c.tie_embeddings = in.flag("tie_word_embeddings", false);
  in.must_be_one_of({"hidden_act"}, {"silu"});
  in.must_be("attention_bias", false, false);
  in.must_be("mlp_bias", false, false);
  if (c.n_head > 0 && in.integer({"head_dim"}, c.d_model / c.n_head) != c.d_model / c.n_head)
    in.fault("head_dim", "heads of another width than hidden_size / num_attention_heads are not supported");
  // Newer files keep the base of the angles here; both names may ask for scaled angles.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* rope = in.find({key});
    if (rope == nullptr) continue;
    if (!rope->is_object()) {
      in.fault(key, fmt::format("{} is no object", rope->dump()));
      continue;
    }
    HubReader inner(*rope, in.file());
    inner.must_be_one_of({"rope_type", "type"}, {"default"});
    c.rope_theta = inner.number("rope_theta", c.rope_theta);
    for (const Issue& issue : inner.issues())
      in.fault(fmt::format("{}.{}", key, issue.key), issue.message, "scaled rotary angles are not supported");
  }
}

// Family, the names of its ForCausalLM class, and the function that reads its keys.
struct HubFamily {
  const char* family;
  const char* architecture;
  void (*read)(HubReader&, model::ModelConfig&);
};
constexpr std::array kFamilies{HubFamily{"gpt2", "GPT2LMHeadModel", read_gpt2},
                               HubFamily{"opt", "OPTForCausalLM", read_opt},
                               HubFamily{"llama", "LlamaForCausalLM", read_llama}};

// The model's own field name for a fault -> the key that a user sees in the file.
std::string hub_key(const HubFamily& family, const std::string& field) {
  const bool gpt2 = std::string_view(family.family) == "gpt2", opt = std::string_view(family.family) == "opt";
  if (field == "n_layer" && !gpt2) return "num_hidden_layers";
  if (field == "n_head" && !gpt2) return "num_attention_heads";
  if (field == "n_kv_head") return "num_key_value_heads";
  if (field == "d_model") return gpt2 ? "n_embd" : "hidden_size";
  if (field == "d_ff") return gpt2 ? "n_inner" : opt ? "ffn_dim" : "intermediate_size";
  if (field == "max_pos" || field == "seq_len") return gpt2 ? "n_positions" : "max_position_embeddings";
  if (field == "norm_eps") return gpt2 ? "layer_norm_epsilon" : "rms_norm_eps";
  return field;
}

}  // namespace

model::ModelConfig read_hub_config(const std::filesystem::path& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw InputError(fmt::format("{}: {}", path.string(), error.message()));
  if (size > kLargestConfig) throw InputError(fmt::format("{}: {} bytes are too many", path.string(), size));
  std::ifstream in(path, std::ios::binary);
  const json object = json::parse(in, nullptr, false);
  if (!object.is_object()) throw InputError(fmt::format("{} is no JSON object", path.string()));

  HubReader reader(object, path.string());
  model::ModelConfig config;
  const json* type = reader.find({"model_type"});
  const HubFamily* family = nullptr;
  for (const HubFamily& candidate : kFamilies) {
    if (type != nullptr && *type == candidate.family) family = &candidate;
  }
  if (family == nullptr) {
    reader.fault("model_type", type == nullptr ? "the file does not state it" : fmt::format("is {}", type->dump()),
                 "gpt2, opt and llama can be imported");
    throw InputError(std::move(reader.issues()));
  }
  config.family = family->family;
  config.vocab_size = reader.integer({"vocab_size"});
  family->read(reader, config);
  config.seq_len = config.max_pos;
  if (reader.issues().empty()) {
    for (Issue issue : model::find_faults(config)) {
      if (issue.key == "seq_len") continue;  // the same fault as max_pos
      reader.fault(hub_key(*family, issue.key), issue.message, issue.hint);
    }
  }
  if (!reader.issues().empty()) throw InputError(std::move(reader.issues()));
  return config;
}

std::string hub_config_of(const model::ModelConfig& c) {
  ordered_json out;
  for (const HubFamily& family : kFamilies) {
    if (c.family == family.family) out["architectures"] = {family.architecture};
  }
  out["model_type"] = c.family;
  out["vocab_size"] = c.vocab_size;
  if (c.family == "gpt2") {
    out["n_positions"] = out["n_ctx"] = c.max_pos;
    out["n_embd"] = c.d_model;
    out["n_layer"] = c.n_layer;
    out["n_head"] = c.n_head;
    out["n_inner"] = c.d_ff;
    out["activation_function"] = "gelu_new";
    out["layer_norm_epsilon"] = c.norm_eps;
  } else {
    out["max_position_embeddings"] = c.max_pos;
    out["hidden_size"] = c.d_model;
    out["num_hidden_layers"] = c.n_layer;
    out["num_attention_heads"] = c.n_head;
    if (c.family == "opt") {
      out["ffn_dim"] = c.d_ff;
      out["word_embed_proj_dim"] = c.d_model;
      out["do_layer_norm_before"] = true;
      out["activation_function"] = "relu";
    } else {
      out["num_key_value_heads"] = c.n_kv_head;
      out["intermediate_size"] = c.d_ff;
      out["hidden_act"] = "silu";
      out["rms_norm_eps"] = c.norm_eps;
      out["rope_theta"] = c.rope_theta;
      out["attention_bias"] = false;
    }
  }
  out["tie_word_embeddings"] = c.tie_embeddings;
  return out.dump(2) + "\n";
}

}  // namespace cleave::app
