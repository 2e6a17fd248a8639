// ParameterStore <-> snapshot.
#include "cleave/server/checkpointing.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/model/family.hpp"

namespace cleave::server {

namespace {

using checkpoint::Attributes;

// Attributes that differ between two configurations, for the message of a mismatch.
std::string differences(const Attributes& a, const Attributes& b) {
  std::string text;
  for (const auto& [name, value] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second == value) continue;
    const auto show = [](const checkpoint::Attribute& v) {
      return std::visit([](const auto& x) { return fmt::format("{}", x); }, v);
    };
    text +=
        fmt::format("{}{} is {} there and {} here", text.empty() ? "" : ", ", name, show(other->second), show(value));
  }
  return text;
}

// Writing takes so many descriptors at once, at most.
constexpr int kDescriptors = 8;
// Descriptors that were taken may come back: a checkpoint waits for them this long, looking this often.
constexpr std::chrono::milliseconds kBetweenAttempts{200};
constexpr int kAttempts = 25;

// Whether this process, or the system, has no descriptors left to write with.
bool lacks_descriptors() {
  std::vector<int> opened;
  bool lacks = false;
  while (!lacks && std::ssize(opened) < kDescriptors) {
    const int descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    lacks = descriptor < 0 && (errno == EMFILE || errno == ENFILE);
    if (descriptor < 0) break;
    opened.push_back(descriptor);
  }
  for (const int descriptor : opened) ::close(descriptor);
  return lacks;
}

void write_when_it_can(const std::filesystem::path& path, const checkpoint::SnapshotView& view) {
  for (int attempt = 1;; ++attempt) {
    try {
      return checkpoint::write_snapshot(path, view);
    } catch (const EnvironmentError&) {
      if (attempt == kAttempts || !lacks_descriptors()) throw;
    }
    std::this_thread::sleep_for(kBetweenAttempts);
  }
}

}  // namespace

Attributes attributes_of(const model::ModelConfig& c) {
  const model::FamilyTraits traits = model::traits_of(c.family);
  return {{"family", c.family},
          {"activation", traits.activation},
          {"vocab_size", c.vocab_size},
          {"n_layer", c.n_layer},
          {"n_head", c.n_head},
          {"n_kv_head", c.n_kv_head},
          {"head_dim", c.head_dim()},
          {"d_model", c.d_model},
          {"d_ff", c.d_ff},
          {"seq_len", c.seq_len},
          {"max_pos", c.max_pos},
          {"pos_offset", traits.pos_offset},
          {"tie_word_embeddings", std::int64_t{c.tie_embeddings}},
          {"norm_eps", c.norm_eps},
          {"rope_theta", c.rope_theta}};
}

model::ModelConfig config_from(const Attributes& attributes, const std::string& file) {
  std::vector<Issue> issues;
  const auto missing = [&](const char* name) {
    issues.push_back({.file = file, .line = 0, .key = name, .message = "the file does not state it", .hint = {}});
  };
  const auto integer = [&](const char* name, std::int64_t& into) {
    if (const auto value = checkpoint::find_integer(attributes, name)) {
      into = *value;
    } else {
      missing(name);
    }
  };
  model::ModelConfig c;
  if (const auto family = checkpoint::find_text(attributes, "family")) {
    c.family = *family;
  } else {
    missing("family");
  }
  integer("vocab_size", c.vocab_size);
  integer("n_layer", c.n_layer);
  integer("n_head", c.n_head);
  integer("n_kv_head", c.n_kv_head);
  integer("d_model", c.d_model);
  integer("d_ff", c.d_ff);
  integer("seq_len", c.seq_len);
  integer("max_pos", c.max_pos);
  std::int64_t tied = 1;
  integer("tie_word_embeddings", tied);
  c.tie_embeddings = tied != 0;
  c.norm_eps = checkpoint::find_number(attributes, "norm_eps").value_or(c.norm_eps);
  c.rope_theta = checkpoint::find_number(attributes, "rope_theta").value_or(c.rope_theta);
  if (issues.empty()) {
    const std::vector<std::string> families = model::family_names();
    if (std::find(families.begin(), families.end(), c.family) == families.end()) {
      issues.push_back({.file = file,
                        .line = 0,
                        .key = "family",
                        .message = fmt::format("there is no family '{}'", c.family),
                        .hint = {}});
    } else {
      for (Issue fault : model::find_faults(c)) {
        fault.file = file;
        issues.push_back(std::move(fault));
      }
    }
  }
  if (!issues.empty()) throw InputError(std::move(issues));
  return c;
}

void save_checkpoint(const std::filesystem::path& path, const ParameterStore& parameters,
                     const model::ModelConfig& config, const RunState& state) {
  checkpoint::SnapshotView view{
      .attributes = attributes_of(config), .state = {}, .model = {}, .exp_avg = {}, .exp_avg_sq = {}};
  view.state = {{"step", state.step},
                {"data_position", state.step},
                {"seed", static_cast<std::int64_t>(state.seed)},
                {"tokenizer", state.tokenizer}};
  if (!state.settings.empty()) view.state["settings"] = state.settings;
  if (!state.parts.empty()) view.state["parts"] = state.parts;
  for (const Parameter& p : parameters.parameters()) {
    view.model.push_back({p.name, p.shape(), p.value});
    if (p.exp_avg.empty()) continue;
    view.exp_avg.push_back({p.name, p.shape(), p.exp_avg});
    view.exp_avg_sq.push_back({p.name, p.shape(), p.exp_avg_sq});
  }
  write_when_it_can(path, view);
}

RunState load_checkpoint(const std::filesystem::path& path, ParameterStore& parameters,
                         const model::ModelConfig& config) {
  const checkpoint::Header header = checkpoint::read_header(path);
  if (header.kind != checkpoint::FileKind::checkpoint)
    throw InputError(path.string() + " is a reference file, not a checkpoint", "give it as model.init");
  const model::ModelConfig theirs = config_from(header.attributes, path.string());
  const std::string differing = differences(attributes_of(config), attributes_of(theirs));
  if (!differing.empty())
    throw InputError(fmt::format("{} is a checkpoint of another model: {}", path.string(), differing));
  checkpoint::SnapshotTarget target;
  for (Parameter& p : parameters.parameters()) {
    target.model.push_back({p.name, p.shape(), p.value});
    const bool trained = std::any_of(header.exp_avg.begin(), header.exp_avg.end(),
                                     [&](const auto& info) { return info.name == p.name; });
    if (!trained) {  // nor was it by then, whatever became of it since
      p.exp_avg.clear();
      p.exp_avg_sq.clear();
      continue;
    }
    p.exp_avg.resize(p.value.size());
    p.exp_avg_sq.resize(p.value.size());
    target.exp_avg.push_back({p.name, p.shape(), p.exp_avg});
    target.exp_avg_sq.push_back({p.name, p.shape(), p.exp_avg_sq});
  }
  checkpoint::read_snapshot_into(path, target);
  const auto step = checkpoint::find_integer(header.state, "step"),
             seed = checkpoint::find_integer(header.state, "seed");
  if (!step || !seed) throw InputError(path.string() + ": its /state lacks step or seed");
  return {.step = *step,
          .seed = static_cast<std::uint64_t>(*seed),
          .tokenizer = checkpoint::find_text(header.state, "tokenizer").value_or(""),
          .settings = checkpoint::find_text(header.state, "settings").value_or(""),
          .parts = checkpoint::find_text(header.state, "parts").value_or("")};
}

std::string other_than(const model::ModelConfig& config, const Attributes& attributes) {
  std::vector<std::string> names{"family", "n_head", "n_kv_head", "norm_eps"};
  if (!model::traits_of(config.family).has_positions) names.emplace_back("rope_theta");
  Attributes here, there;
  for (const std::string& name : names) {
    const Attributes ours = attributes_of(config);
    const auto number = checkpoint::find_number(attributes, name), own = checkpoint::find_number(ours, name);
    if (number && own && *number == *own) continue;  // whole or not
    here.insert(*ours.find(name));
    if (const auto found = attributes.find(name); found != attributes.end()) there.insert(*found);
  }
  return differences(here, there);
}

void load_parameters(const std::filesystem::path& path, ParameterStore& parameters) {
  checkpoint::SnapshotTarget target;
  for (Parameter& p : parameters.parameters()) target.model.push_back({p.name, p.shape(), p.value});
  checkpoint::read_snapshot_into(path, target);
}

}  // namespace cleave::server
