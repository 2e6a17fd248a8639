// config.json of Hugging Face transformers, read and written under the keys of its family (model/hub_config.hpp).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"
#include "cleave/model/hub_config.hpp"
#include "cli/json_depth.hpp"
#include "input/model_files.hpp"

namespace cleave::app {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::uintmax_t kLargestConfig = 1 << 20;
constexpr const char* kTied = "tie_word_embeddings";

// One object of JSON, read key by key; faults are collected.
class HubReader final : public model::HubConfig {
 public:
  HubReader(const json& object, std::string file) : object_(object), file_(std::move(file)) {}

  void fault(const std::string& key, std::string message, std::string hint = {}) {
    issues_.push_back({.file = file_, .line = 0, .key = key, .message = std::move(message), .hint = std::move(hint)});
  }

  // The first of `keys` that is there; null counts as absent, as in transformers.
  const json* find(Keys keys) const {
    for (const char* key : keys) {
      const auto found = object_.find(key);
      if (found != object_.end() && !found->is_null()) return &*found;
    }
    return nullptr;
  }

  void integer(const char* field, Keys keys, std::int64_t& value, std::optional<std::int64_t> otherwise) override {
    key_of_[field] = *keys.begin();
    const json* stated = find(keys);
    const bool whole = stated != nullptr && stated->is_number_integer() &&
                       !(stated->is_number_unsigned() && stated->get<std::uint64_t>() >> 62 != 0);
    if (stated == nullptr && !otherwise) fault(*keys.begin(), "the file does not state it");
    if (stated != nullptr && !whole)
      fault(*keys.begin(), fmt::format("{} is no whole number in range", stated->dump()));
    value = whole ? stated->get<std::int64_t>() : otherwise.value_or(1);
  }

  void number(const char* field, const char* key, double& value, double otherwise) override {
    key_of_[field] = key;
    const json* stated = find({key});
    value = otherwise;
    if (stated == nullptr) return;
    if (stated->is_number()) {
      value = stated->get<double>();
    } else {
      fault(key, fmt::format("{} is no number", stated->dump()));
    }
  }

  bool flag(const char* key, bool otherwise) {
    const json* stated = find({key});
    if (stated == nullptr) return otherwise;
    if (stated->is_boolean()) return stated->get<bool>();
    fault(key, fmt::format("{} is neither true nor false", stated->dump()));
    return otherwise;
  }

  void word(Keys keys, std::initializer_list<const char*> words) override {
    const json* stated = find(keys);
    if (stated == nullptr) return;
    for (const char* name : words) {
      if (*stated == name) return;
    }
    fault(*keys.begin(), fmt::format("{} is not supported", stated->dump()), fmt::format("only {}", *words.begin()));
  }

  void fixed(const Fixed& variant) override {
    if (flag(variant.key, variant.value) != variant.value)
      fault(variant.key, fmt::format("{} is not supported", !variant.value));
  }

  void fixed_size(const FixedSize& size) override {
    std::int64_t stated = 0;
    integer(size.key, {size.key}, stated, size.value);
    if (stated != size.value) fault(size.key, fmt::format("{} are not supported", size.why));
  }

  void repeat(const char* /*key*/, std::int64_t /*value*/) override {}

  void rotary(const char* key, double& rope_theta) override {
    const json* rope = find({key});
    if (rope == nullptr) return;
    if (!rope->is_object()) return fault(key, fmt::format("{} is no object", rope->dump()));
    HubReader inner(*rope, file_);
    inner.word({"rope_type", "type"}, {"default"});
    inner.number("rope_theta", "rope_theta", rope_theta, rope_theta);
    for (const Issue& issue : inner.issues())
      fault(fmt::format("{}.{}", key, issue.key), issue.message, "scaled rotary angles are not supported");
  }

  // The key that a user sees in the file, of a field of ModelConfig.
  [[nodiscard]] std::string key_of(const std::string& field) const {
    const auto found = key_of_.find(field);
    return found == key_of_.end() ? field : found->second;
  }
  std::vector<Issue>& issues() { return issues_; }

 private:
  const json& object_;
  std::string file_;
  std::map<std::string, std::string> key_of_;
  std::vector<Issue> issues_;
};

// States a model's values under the family's keys.
class HubWriter final : public model::HubConfig {
 public:
  explicit HubWriter(ordered_json& out) : out_(out) {}

  void integer(const char* /*field*/, Keys keys, std::int64_t& value,
               std::optional<std::int64_t> /*otherwise*/) override {
    out_[*keys.begin()] = value;
  }
  void number(const char* /*field*/, const char* key, double& value, double /*otherwise*/) override {
    out_[key] = value;
  }
  void word(Keys keys, std::initializer_list<const char*> words) override { out_[*keys.begin()] = *words.begin(); }
  void fixed(const Fixed& variant) override {
    if (variant.written) out_[variant.key] = variant.value;
  }
  void fixed_size(const FixedSize& size) override {
    if (size.written) out_[size.key] = size.value;
  }
  void repeat(const char* key, std::int64_t value) override { out_[key] = value; }
  void rotary(const char* /*key*/, double& /*rope_theta*/) override {}

 private:
  ordered_json& out_;
};

}  // namespace

model::ModelConfig read_hub_config(const std::filesystem::path& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw InputError(fmt::format("{}: {}", path.string(), error.message()));
  if (size > kLargestConfig) throw InputError(fmt::format("{}: {} bytes are too many", path.string(), size));
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  // Faults show the values that are wrong.
  if (json_depth(text) > kDeepestJson)
    throw InputError(fmt::format("{} is nested more than {} deep", path.string(), kDeepestJson));
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) throw InputError(fmt::format("{} is no JSON object", path.string()));

  HubReader reader(object, path.string());
  model::ModelConfig config;
  const json* type = reader.find({"model_type"});
  const std::vector<std::string> families = model::hub_families();
  const auto family =
      std::ranges::find_if(families, [&](const auto& name) { return type != nullptr && *type == name; });
  if (family == families.end()) {
    reader.fault("model_type", type == nullptr ? "the file does not state it" : fmt::format("is {}", type->dump()),
                 fmt::format("{} can be imported", fmt::join(families, ", ")));
    throw InputError(std::move(reader.issues()));
  }
  config.family = *family;
  reader.integer("vocab_size", {"vocab_size"}, config.vocab_size, {});
  model::visit_hub_config(reader, config);
  config.tie_embeddings = reader.flag(kTied, model::traits_of(config.family).default_tied);
  config.seq_len = config.max_pos;
  if (reader.issues().empty()) {
    for (const Issue& issue : model::find_faults(config)) {
      if (issue.key == "seq_len") continue;  // the same fault as max_pos
      reader.fault(reader.key_of(issue.key), issue.message, issue.hint);
    }
  }
  if (!reader.issues().empty()) throw InputError(std::move(reader.issues()));
  return config;
}

std::string hub_config_of(const model::ModelConfig& config) {
  ordered_json out(ordered_json::value_t::object);
  out["architectures"] = {model::hub_class_of(config.family)};
  out["model_type"] = config.family;
  out["vocab_size"] = config.vocab_size;
  HubWriter writer(out);
  model::ModelConfig stated = config;
  model::visit_hub_config(writer, stated);
  out[kTied] = config.tie_embeddings;
  return out.dump(2) + "\n";
}

}  // namespace cleave::app
