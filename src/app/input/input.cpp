// Declarations of every input key. Help texts state meaning, and the cost of a larger value where there is one.
#include "input/input.hpp"
#include "input/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <utility>

#include "cleave/config/nearest.hpp"
#include "cleave/model/family.hpp"
#include "cleave/sched/layout_choice.hpp"
#include "cli/one_file.hpp"
#include "input/churn_trace.hpp"

namespace cleave::app {

namespace {

using config::Range;
using config::Section;

data::SourceEntry entry_of(const config::Path& path) {
  return {.as_written = path.written, .resolved = path.resolved, .file = path.file, .line = path.line};
}

ModelInput read_model(const Section& in, model::ModelConfig& c) {
  ModelInput model;
  const std::string preset =
      in.text("preset", {.optional = true, .help = "A published configuration to start from; other keys override it."});
  if (in.given("preset") && in.sound("preset")) {
    if (const auto found = model::find_preset(preset)) {
      c = *found;
      model.preset = preset;
    } else {
      const std::vector<std::string> presets = model::preset_names();
      in.fault("preset", fmt::format("there is no preset '{}'", preset), config::hint_for(preset, presets));
    }
  }
  const bool from_preset = in.given("preset");
  const bool grouped = c.n_kv_head != c.n_head;  // the preset's
  const std::vector<std::string> families = model::family_names();
  c.family = in.text("family", {.default_value = c.family, .help = config::one_of(families) + "."});
  if (std::find(families.begin(), families.end(), c.family) == families.end()) {
    if (in.sound("family"))
      in.fault("family", fmt::format("there is no family '{}'", c.family), config::hint_for(c.family, families));
    c.family = model::ModelConfig{}.family;
  }
  constexpr std::int64_t kMost = 1'000'000;
  c.n_layer =
      in.integer("n_layer", {.default_value = c.n_layer, .min = 1, .max = 1000, .help = "Transformer blocks L."});
  c.n_head = in.integer("n_head", {.default_value = c.n_head, .min = 1, .max = kMost, .help = "Attention heads H."});
  c.n_kv_head =
      in.integer("n_kv_head", {.default_value = from_preset && grouped ? c.n_kv_head : c.n_head,
                               .min = 1,
                               .max = kMost,
                               .help = "Key/value heads; without it n_head. Fewer: grouped-query attention (llama)."});
  c.d_model = in.integer("d_model", {.default_value = c.d_model, .min = 1, .max = kMost, .help = "Model width d."});
  c.d_ff = in.integer("d_ff", {.default_value = from_preset ? c.d_ff : model::default_d_ff(c.family, c.d_model),
                               .min = 1,
                               .max = model::kWidestFeedForward,
                               .help = "Feed-forward width; without it the family's, mostly 4 d_model."});
  model.vocab_given = in.given("vocab_size") || from_preset;
  c.vocab_size = in.integer("vocab_size", {.default_value = c.vocab_size,
                                           .min = 1,
                                           .max = 10 * kMost,
                                           .help = "Vocabulary V; without it, what the tokenizer has. plan and "
                                                   "simulate, which read no text, take the default."});
  c.seq_len = in.integer("seq_len", {.default_value = c.seq_len,
                                     .min = 1,
                                     .max = 10 * kMost,
                                     .help = "Tokens of a training sequence T. Attention costs its square."});
  c.max_pos = in.integer("max_pos", {.default_value = from_preset ? std::max(c.max_pos, c.seq_len) : c.seq_len,
                                     .min = 1,
                                     .max = 10 * kMost,
                                     .help = "Rows of the position table, at least seq_len; without it seq_len."});
  c.tie_embeddings = in.boolean(
      "tie_embeddings", {.default_value = from_preset ? c.tie_embeddings : model::traits_of(c.family).default_tied,
                         .help = "The output projection is the token embedding; without it as in the family."});
  c.norm_eps = in.real(
      "norm_eps", {.default_value = c.norm_eps, .above = 0.0, .below = 1.0, .help = "Added to the variance in norms."});
  c.rope_theta =
      in.real("rope_theta", {.default_value = c.rope_theta, .min = 1.0, .help = "Base of the rotary angles (llama)."});
  for (const Issue& fault : model::find_faults(c)) {
    std::string_view key = fault.key;
    if (key.starts_with("model.")) key.remove_prefix(6);
    if (in.sound(key)) in.fault(key, fault.message, fault.hint);
  }
  const config::WordOrPath init =
      in.word_or_path("init", {"random"},
                      {.default_value = "random", .help = "random, or a checkpoint or reference file to start from."});
  if (init.word.empty()) model.init = entry_of(init.path);
  return model;
}

DataInput read_data(const Section& in, Needs needs) {
  DataInput data;
  const auto take = [&](DataKind kind, const std::vector<config::Path>& paths) {
    data.kind = kind;
    for (const config::Path& path : paths) data.sources.push_back(entry_of(path));
  };
  const auto paths =
      in.paths("text", {.optional = true,
                        .help = "Files, folders and globs of text to train on. Hidden files, binary ones, build/, "
                                "runs/ and output.dir are passed over where they are not named."});
  if (in.given("text")) take(DataKind::text, paths);
  const config::Path tokens =
      in.path("tokens",
              {.optional = true, .help = "A file of token ids (uint16, or llm.c's header + uint16) instead of text."});
  const config::Path batches = in.path(
      "batches", {.optional = true, .help = "A reference file whose batches are used as they are, instead of text."});
  if (in.given("tokens")) take(DataKind::tokens, {tokens});
  if (in.given("batches")) take(DataKind::batches, {batches});
  const int given = int{in.given("text")} + int{in.given("tokens")} + int{in.given("batches")};
  if (given > 1)
    in.fault(in.given("batches") ? "batches" : "tokens", "only one of text, tokens and batches can be given");
  if (given == 0 && needs == Needs::everything)
    in.fault("", "one of text, tokens and batches is required", "text: [FILE or folder or glob, ...]");
  data.tokenizer = in.choice<TokenizerKind>(
      "tokenizer", {{"byte", TokenizerKind::byte}, {"char", TokenizerKind::character}},
      {.default_value = data.tokenizer, .help = "Tokens of a text: its bytes, or its distinct characters."});
  data.val_fraction = in.real("val_fraction", {.default_value = data.val_fraction,
                                               .min = 0.0,
                                               .below = 1.0,
                                               .help = "Share of the tokens, at the end, kept for validation."});
  return data;
}

server::TrainSettings read_train(const Section& in, sched::StepSpec& step) {
  server::TrainSettings t;
  t.steps = in.integer("steps", {.default_value = t.steps, .min = 1, .help = "Optimizer steps."});
  step.batch =
      in.integer("batch", {.default_value = step.batch, .min = 1, .max = 10'000'000, .help = "Sequences in one step."});
  t.lr = in.real("lr", {.default_value = t.lr, .min = 0.0, .help = "Learning rate after warm-up."});
  t.min_lr = in.real(
      "min_lr", {.default_value = t.lr / 10, .min = 0.0, .help = "Rate from lr_decay_steps on; without it lr / 10."});
  t.warmup_steps = in.integer(
      "warmup_steps", {.default_value = t.warmup_steps, .min = 0, .help = "Steps over which the rate rises linearly."});
  t.lr_decay_steps = in.integer(
      "lr_decay_steps",
      {.default_value = t.steps, .min = 0, .help = "Step at which the cosine ends at min_lr; without it train.steps."});
  t.beta1 = in.real("beta1",
                    {.default_value = t.beta1, .min = 0.0, .below = 1.0, .help = "AdamW: decay of the first moment."});
  t.beta2 = in.real("beta2",
                    {.default_value = t.beta2, .min = 0.0, .below = 1.0, .help = "AdamW: decay of the second moment."});
  t.adam_eps =
      in.real("adam_eps",
              {.default_value = t.adam_eps, .above = 0.0, .help = "AdamW: added to the root of the second moment."});
  t.weight_decay = in.real(
      "weight_decay",
      {.default_value = t.weight_decay, .min = 0.0, .help = "AdamW: decoupled decay of matrices and embeddings."});
  t.grad_clip = in.real(
      "grad_clip", {.default_value = t.grad_clip, .min = 0.0, .help = "Largest global gradient norm; 0: no clipping."});
  t.seed = static_cast<std::uint64_t>(in.integer(
      "seed",
      {.default_value = static_cast<std::int64_t>(t.seed), .min = 0, .help = "Seed of parameters and batches."}));
  t.eval_every = in.integer(
      "eval_every", {.default_value = t.eval_every,
                     .min = 0,
                     .help = "Steps between evaluations on the validation split, besides one at the end; 0: none."});
  t.eval_batches = in.integer(
      "eval_batches",
      {.default_value = t.eval_batches, .min = 0, .help = "Batches of one evaluation; 0: the whole validation split."});
  step.freeze =
      in.texts("freeze", {.default_value = step.freeze, .help = "Patterns of parameter names that are not trained."});
  step.clip = t.grad_clip > 0;
  if (t.min_lr > t.lr && in.sound("min_lr") && in.sound("lr"))
    in.fault("min_lr", fmt::format("{} is above lr {}", t.min_lr, t.lr));
  return t;
}

// What is wrong with the step that model and training settings make together. Names of parameters do not depend on the
// vocabulary, which the data may still change.
void check_step(const Section& train, const Input& input) {
  for (const Issue& fault : model::find_faults(input.step.model, sched::graph_options(input.step, 1))) {
    if (train.sound(fault.key)) train.fault(fault.key, fault.message, fault.hint);
  }
}

template <class T>
fleet::Range plain(const Range<T>& range) {
  return {static_cast<double>(range.low.value()), static_cast<double>(range.high.value())};
}

// The value that both ends of a group's range have where the input does not say.
template <class T>
T default_of(const fleet::Range& range) {
  return T(range.low);
}

fleet::DeviceGroup read_group(const Section& in) {
  fleet::DeviceGroup g;
  g.name = in.text("name", {.default_value = g.name, .help = "What devices of this group are called."});
  g.count =
      in.integer("count", {.default_value = g.count, .min = 1, .max = 10'000'000, .help = "Devices in this group."});
  g.compute_flops =
      plain(in.compute_range("compute", {.min = kSlowestProcessor, .help = "Sustained rate of the processor."}));
  g.memory_bytes =
      plain(in.bytes_range("memory", {.min = Bytes(1), .help = "Memory for the blocks that the device works on."}));
  g.downlink_bytes = plain(in.rate_range(
      "downlink", {.min = kSlowestLink, .unlimited = true, .help = "Rate from the server to the device."}));
  g.uplink_bytes = plain(
      in.rate_range("uplink", {.min = kSlowestLink, .unlimited = true, .help = "Rate from the device to the server."}));
  g.latency_s = plain(in.seconds_range(
      "latency",
      {.default_value = default_of<Seconds>(g.latency_s), .max = kLongestDelay, .help = "One way, once per message."}));
  g.jitter_s = plain(in.seconds_range("jitter", {.default_value = default_of<Seconds>(g.jitter_s),
                                                 .max = kLongestDelay,
                                                 .help = "Each message is late by a uniform draw up to this."}));
  g.power_compute_w = plain(in.watts_range(
      "power_compute", {.default_value = default_of<Watts>(g.power_compute_w), .help = "Power while multiplying."}));
  g.power_radio_w = plain(in.watts_range("power_radio", {.default_value = default_of<Watts>(g.power_radio_w),
                                                         .help = "Power while sending or receiving."}));
  g.power_idle_w = plain(in.watts_range(
      "power_idle", {.default_value = default_of<Watts>(g.power_idle_w), .help = "Power at all times."}));
  g.owner = in.text("owner", {.default_value = g.owner,
                              .help = "Whose devices they are: with verify.mode quorum no device is asked about "
                                      "another one of the same owner."});
  g.group = in.text("group", {.default_value = g.group,
                              .help = "Likewise of devices that may act together, such as one make or one network."});
  return g;
}

FleetInput read_fleet(const Section& in, std::uint64_t& seed) {
  FleetInput f;
  seed = static_cast<std::uint64_t>(in.integer(
      "seed",
      {.default_value = static_cast<std::int64_t>(seed), .min = 0, .help = "Seed of the figures drawn for devices."}));
  f.clock = in.choice<server::ClockMode>(
      "clock",
      {{"virtual", server::ClockMode::virtual_time},
       {"wall", server::ClockMode::wall},
       {"off", server::ClockMode::off}},
      {.default_value = f.clock,
       .help = "virtual: modelled times order the events; wall: the same, in real time; off: "
               "as fast as the host can."});
  f.patience = in.seconds(
      "patience",
      {.default_value = f.patience,
       .min = kLeastPatience,
       .max = kMostPatience,
       .help = "Real time without a word after which a rank's blocks are computed elsewhere until it speaks again."});
  f.shared_memory = in.boolean("shared_memory",
                               {.default_value = f.shared_memory,
                                .help = "Large messages between the server and ranks of its host are read where they "
                                        "were written, without a copy or a checksum of their numbers, and operands in "
                                        "fp32 where the server keeps its tensors; false: as over a network."});
  in.each("devices", {.min_count = 1, .help = "Groups of devices; [low, high] is drawn uniformly per device."},
          [&](const Section& group) { f.groups.push_back(read_group(group)); });
  f.links = read_links(in, f.groups);
  f.peer_links = read_peer_links(in);
  const config::WordOrSection churn = in.word_or_section(
      "churn", {"none"}, {.default_value = "none", .help = "When devices leave, join, slow down or lie."});
  if (churn.word.empty()) {
    f.churns = true;
    const Section& c = churn.section;
    const config::Path trace = c.path("trace", {.optional = true, .help = "A trace file of events."});
    if (c.given("trace")) {
      f.trace = trace.resolved;
      std::error_code ignored;
      if (c.sound("trace") && !std::filesystem::exists(f.trace, ignored))
        c.fault("trace", fmt::format("{}: no such file", trace.written));
    }
    f.churn.mean_session = c.seconds("mean_session", {.default_value = f.churn.mean_session,
                                                      .help = "Mean time that a device stays; 0 s: for ever."});
    f.churn.mean_absence =
        c.seconds("mean_absence", {.default_value = f.churn.mean_absence, .help = "Mean time that a device is away."});
    f.churn.slow_fraction = c.real("slow_fraction", {.default_value = f.churn.slow_fraction,
                                                     .min = 0.0,
                                                     .max = 1.0,
                                                     .help = "Share of devices that run slower than declared."});
    f.churn.slow_factor = c.real("slow_factor", {.default_value = f.churn.slow_factor,
                                                 .min = kSlowestFactor,
                                                 .max = 1.0,
                                                 .help = "Their rates, relative to the declared ones."});
    f.churn.faulty_fraction = c.real("lie_fraction", {.default_value = f.churn.faulty_fraction,
                                                      .min = 0.0,
                                                      .max = 1.0,
                                                      .help = "Share of devices whose results are wrong."});
    f.churn.faults.kind = read_fault_kind(c, "lie_kind");
    f.churn.faults.share = c.real("lie_share", {.default_value = f.churn.faults.share,
                                                .min = 0.0,
                                                .max = 1.0,
                                                .help = "Share of a lying device's results that are wrong."});
    f.churn.seed = static_cast<std::uint64_t>(c.integer(
        "seed",
        {.default_value = static_cast<std::int64_t>(f.churn.seed), .min = 0, .help = "Seed of the events drawn."}));
    for (const auto& [key, draws] : {std::pair("mean_session", f.churn.mean_session > Seconds(0)),
                                     std::pair("slow_fraction", f.churn.slow_fraction > 0),
                                     std::pair("lie_fraction", f.churn.faulty_fraction > 0)}) {
      if (!f.trace.empty() && draws) c.fault(key, "draws nothing beside a trace", "leave out one of the two");
    }
  }
  return f;
}

// `auto` is 0.
std::int64_t read_row_groups(const Section& plan) {
  constexpr std::int64_t kMost = 1'000'000;
  const std::string text = plan.text(
      "row_groups",
      {.default_value = "auto",
       .help = "auto, or the number of groups of sequences that follow each other through the forward pass and "
               "the input gradients in tiles, so that one group's results leave while the next one's operands "
               "arrive; never more than sequences. auto: the quickest of 1, 2, 4 and 8; 1 where "
               "the input has data."});
  if (text == "auto") return 0;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMost) {
    plan.fault("row_groups", fmt::format("'{}' is neither auto nor a number from 1 to {}", text, kMost));
    return 0;
  }
  return value;
}

// `auto` is 0.
std::int64_t read_chunk_tokens(const Section& plan) {
  constexpr std::int64_t kMost = 1'000'000'000;
  const std::string text =
      plan.text("chunk_tokens", {.default_value = "auto",
                                 .help = "Stages: tokens of a sequence that pass through a stage at a time, a multiple "
                                         "of 128. auto: the quickest. As many as a sequence has: sequences are not "
                                         "cut, and a stage waits for the one below to be done with a whole one."});
  if (text == "auto") return 0;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMost ||
      value % plan::kChunkTokens != 0) {
    plan.fault("chunk_tokens", fmt::format("'{}' is neither auto nor a multiple of {}", text, plan::kChunkTokens));
    return 0;
  }
  return value;
}

void read_stages(const Section& plan, sched::LayoutRequest& request) {
  request.chunk_tokens = read_chunk_tokens(plan);
  request.owners = plan.choice<plan::OwnerPlaces>(
      "owners",
      {{"auto", plan::OwnerPlaces::automatic},
       {"replicas", plan::OwnerPlaces::replicas},
       {"apart", plan::OwnerPlaces::apart}},
      {.default_value = request.owners,
       .help =
           "Stages: who sums the gradient of a stage. replicas: those of its weights, which have read what they ran "
           "themselves; apart: other devices, which are sent everything; auto: both, as is quickest."});
  request.preload = plan.boolean(
      "preload", {.default_value = request.preload,
                  .help = "Stages: weights of all stages are sent as the step begins, those of lower stages first. "
                          "false: a stage's weights are sent when the first sequence reaches it."});
  request.rounds = plan.boolean(
      "rounds", {.default_value = request.rounds,
                 .help = "Stages: where devices cannot hold all stages at once, or hardly, stages take turns on them, "
                         "round after round, and pieces that no device has room for run in tiles between them. false: "
                         "all are held at once, or there are none."});
  request.server_sums = plan.boolean(
      "server_sums",
      {.default_value = request.server_sums,
       .help =
           "Stages: sums of gradients that a device was lost with, or is late with, are made by the server as long as "
           "it keeps up, and otherwise as far as devices that have the stage's weights are not in time; with "
           "fleet.clock off only where no device has room. false: by devices alone."});
}

// Where the input has data, and asks for what stages cannot do with real numbers yet, the layout is not left open:
// `train` runs in tiles, and `simulate` and `plan` say the same of one input.
void settle_layout(Input& input) {
  sched::LayoutRequest& request = input.step.layout;
  if (input.data.kind == DataKind::none) return;
  request.row_groups = std::max<std::int64_t>(1, request.row_groups);
  request.as_trained = true;
  if (input.verify_open) {  // stages beside tiles, each checked its own way
    input.step.paired = input.verify.fraction;
    input.step.pairs_in_tiles = false;
  }
  if (request.layout != sched::Layout::automatic) return;
  std::string& since = input.tiles_since;
  if (input.verify.rollback > 0) since = "verify.rollback is on";
  request.layout = sched::Layout::stages;
  refuse_unready_stages(input, [&](const char*, const char*, const char*, const char*) {
    since = fmt::format("stages do not have verify.mode {}; they have quorum, audit and off",
                        server::name_of(input.verify.mode));
  });
  request.layout = since.empty() ? sched::Layout::automatic : sched::Layout::tiles;
}

/// Emulated time for which churn is drawn: longer than any run is watched, and a bound for fleets that change very
/// fast.
constexpr Seconds kChurnHorizon{30.0 * 24 * 3600};
constexpr double kMostSessions = 20000;

Seconds churn_horizon(const fleet::ChurnModel& churn) {
  return std::min(kChurnHorizon, (churn.mean_session + churn.mean_absence) * kMostSessions);
}

plan::Partition read_partition(const Section& plan, plan::Partition usual) {
  std::vector<std::pair<std::string, plan::Partition>> names;
  std::string help;
  for (const auto& [partition, what] : plan::all_partitions()) {
    names.emplace_back(partition.name(), partition);
    help += fmt::format("{}{}: {}", help.empty() ? "" : "; ", partition.name(), what);
  }
  return plan.choice<plan::Partition>("partition", names, {.default_value = usual, .help = help + "."});
}

}  // namespace

void note_effective(Input& input, std::string_view key, std::int64_t value, std::string_view whence) {
  const std::string begin = fmt::format("\n  {}: ", key);
  const std::size_t at = input.effective.find(begin);
  if (at == std::string::npos) return;
  const std::size_t end = input.effective.find('\n', at + 1);
  input.effective.replace(at, end - at, fmt::format("{}{}  # {}", begin, value, whence));
}

void refuse_result_over(const Input& input, const std::filesystem::path& result) {
  for (const data::SourceEntry& source : input.data.sources) refuse_one_file(source.resolved, result);
  if (input.data.kind == DataKind::text && !result.empty() &&
      data::takes_file(input.data.sources, result, input.output))
    throw fault_at(input, "data.text", fmt::format("takes {}, which would be lost", result.string()),
                   "another name for the result");
  if (input.model.init) refuse_one_file(input.model.init->resolved, result);
  refuse_one_file(input.fleet.trace, result);
}

void draw_fleet(Input& input) {
  sched::StepSpec& step = input.step;
  step.devices = fleet::draw_devices(input.fleet.groups, step.seed);
  if (!input.fleet.churns) return;
  const std::int64_t count = std::ssize(step.devices);
  step.churn = input.fleet.trace.empty() ? fleet::draw_churn(input.fleet.churn, count, churn_horizon(input.fleet.churn))
                                         : read_churn_trace(input.fleet.trace, count);
}

std::string settle_verification(Input& input, sched::Layout taken) {
  if (!std::exchange(input.verify_open, false)) return {};
  const bool stages = taken == sched::Layout::stages;
  input.verify.mode = stages ? server::VerifyMode::quorum : server::VerifyMode::sample;
  input.step.paired = stages ? input.verify.fraction : 0.0;
  input.step.pairs_in_tiles = true;
  return fmt::format("verify.mode is auto: {}", server::name_of(input.verify.mode));
}

std::string say_layout(const Input& input, sched::Layout taken) {
  const std::string& since = input.tiles_since;
  return fmt::format("plan.layout is auto: {}{}{}", sched::name_of(taken), since.empty() ? "" : ", since ", since);
}

void refuse_unready_stages(const Input& input, const StageFault& fault) {
  if (input.step.layout.layout != sched::Layout::stages || input.verify_open) return;
  if (input.verify.mode == server::VerifyMode::sample || input.verify.mode == server::VerifyMode::all)
    fault("verify", "mode", "what is between the products of a stage never leaves a device, so they cannot be checked",
          "quorum, audit or off, or plan.layout: tiles");
}

Input declare_input(config::Reader& reader, Needs needs) {
  Input input;
  input.model = read_model(reader.section("model", "The architecture."), input.step.model);
  input.data = read_data(reader.section("data", "What to train on."), needs);
  const Section train = reader.section("train", "How to train.");
  input.train = read_train(train, input.step);
  input.decay_given = train.given("lr_decay_steps");
  if (model::find_faults(input.step.model).empty()) check_step(train, input);
  input.fleet = read_fleet(reader.section("fleet", "The emulated devices."), input.step.seed);
  input.server = read_server(reader.section("server", "The parameter server."), input.step.plan.server);
  const Section plan = reader.section("plan", "How operations are cut.");
  input.step.plan.partition = read_partition(plan, input.step.plan.partition);
  input.step.layout.layout = plan.choice<sched::Layout>(
      "layout",
      {{"auto", sched::Layout::automatic}, {"tiles", sched::Layout::tiles}, {"stages", sched::Layout::stages}},
      {.default_value = input.step.layout.layout,
       .help =
           "tiles: every operation is cut over the fleet, and devices hold next to nothing. stages: devices hold the "
           "weights of neighbouring layers for a step, and sequences pass through them in chunks. auto: the quicker "
           "one. train takes tiles where the input asks for what stages lack yet. With fleet.clock off "
           "train and plan take tiles unless every device has two sequences, and room for the whole model and what it "
           "keeps of them."});
  input.step.layout.row_groups = read_row_groups(plan);
  read_stages(plan, input.step.layout);
  input.step.plan.keep_columns = plan.choice<plan::KeepColumns>(
      "keep_weights",
      {{"auto", plan::KeepColumns::where_quicker},
       {"never", plan::KeepColumns::never},
       {"always", plan::KeepColumns::always}},
      {.default_value = input.step.plan.keep_columns,
       .help = "Types of operations have devices of their own, which keep their part of the weights from row group to "
               "row group. auto: where that is predicted to be quicker; never: each group is sent the weights; "
               "always: with layout auto also, a step in tiles."});
  input.step.plan.most_panels = plan.integer(
      "panels",
      {.default_value = input.step.plan.most_panels,
       .min = 1,
       .max = 1024,
       .help = "Panels in which a tasklet streams through its device, at most, where memory asks for no more. "
               "1: all operands come before the first multiplication, and results leave after the last."});
  input.step.asynchronous = plan.boolean(
      "asynchronous", {.default_value = input.step.asynchronous,
                       .help = "Operations begin when their inputs are ready. false: one after another, with a barrier "
                               "between them, as systems without a scheduler do."});
  input.step.wire =
      plan.choice<DType>("wire", {{"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}},
                         {.default_value = input.step.wire, .help = "Type of operands and results on the wire."});
  input.step.boundary = plan.choice<std::optional<DType>>(
      "boundary", {{"wire", std::nullopt}, {"mxint8", DType::mxint8}},
      {.default_value = input.step.boundary,
       .help = "Type to which the residual stream and its gradient are rounded at every half of a layer, and in which "
               "they travel between stages. wire: plan.wire. mxint8: 8 bits, and a power of two for 32 of them "
               "(MXINT8 of the OCP Microscaling Formats): half the bytes, and another training."});
  const Section verify = reader.section("verify", "Checks of returned blocks.");
  const auto mode = verify.choice<std::optional<server::VerifyMode>>(
      "mode",
      {{"auto", std::nullopt},
       {"off", server::VerifyMode::off},
       {"sample", server::VerifyMode::sample},
       {"all", server::VerifyMode::all},
       {"audit", server::VerifyMode::audit},
       {"quorum", server::VerifyMode::quorum}},
      {.default_value = std::optional<server::VerifyMode>(),
       .help =
           "Which returned blocks are checked against their operands: none, a share, all; audit: a share is computed "
           "again and compared bit for bit; quorum: a share is computed by a second device too, which returns a digest "
           "of it. auto: sample in tiles, quorum in stages."});
  input.verify_given = verify.given("mode");
  input.verify_open = !mode;
  input.verify.mode = mode.value_or(server::VerifyMode::sample);
  if (needs == Needs::everything)  // simulate multiplies nothing, so there is nothing to check
    refuse_unready_stages(input, [&](const char* section, const char* key, const char* what, const char* hint) {
      (std::string_view(section) == "plan" ? plan : verify).fault(key, what, hint);
    });
  input.verify.fraction = verify.real(
      "fraction", {.default_value = input.verify.fraction,
                   .min = 0.0,
                   .max = 1.0,
                   .help = "Share of blocks that `sample` checks, that `audit` computes again, that `quorum` "
                           "gives to a second device."});
  if (input.verify.mode == server::VerifyMode::quorum) input.step.paired = input.verify.fraction;
  input.verify.rollback = verify.integer(
      "rollback", {.default_value = input.verify.rollback,
                   .min = 0,
                   .max = 10000,
                   .help = "When a device is found out, earlier steps in which it had a part that was not checked are "
                           "taken back and run again without it, if they are no more than so many ago. Takes up to 5 "
                           "more copies of trained parameters and moments. 0: what it did in earlier steps stays."});
  if (input.verify.rollback > 0 &&
      (input.verify.mode == server::VerifyMode::off || input.verify.mode == server::VerifyMode::all))
    verify.fault(
        "rollback",
        fmt::format("with verify.mode {} nothing is left to be taken back", server::name_of(input.verify.mode)),
        "leave it out, or take sample, audit or quorum");
  const Section checkpoint = reader.section("checkpoint", "When and how many.");
  input.checkpoint_every =
      checkpoint.integer("every", {.default_value = input.checkpoint_every,
                                   .min = 0,
                                   .help = "Steps between checkpoints, besides the one at the end; 0: only that."});
  input.checkpoint_keep =
      checkpoint.integer("keep", {.default_value = input.checkpoint_keep,
                                  .min = 1,
                                  .help = "Newest checkpoints that are kept; verify.rollback keeps up to two more."});
  input.checkpoint_failure_stops = checkpoint.choice<bool>(
      "on_failure", {{"continue", false}, {"stop", true}},
      {.default_value = input.checkpoint_failure_stops,
       .help = "When a checkpoint cannot be written (disk full, folder not writable): go on to the next one, or stop "
               "with exit code 1. The last one of a run always stops it."});
  const Section output = reader.section("output", "Where results go.");
  const config::Path folder = output.path("dir", {.default_value = "runs/run", .help = "The run's folder."});
  input.output = folder.resolved;
  input.output_on_command_line = folder.file == config::kCommandLine;
  input.profile = output.boolean("profile", {.default_value = input.profile,
                                             .help = "Measure where the server's real time goes, by phase and type of "
                                                     "operation: profile.json, the log, the report."});
  settle_layout(input);
  input.simulate = read_simulate(reader.section("simulate", "How `simulate` compares systems."));
  return input;
}

Input read_input(const std::filesystem::path& path, const std::vector<std::string>& overrides, Needs needs) {
  config::Document document = config::Document::load(path);
  document.apply(overrides);
  const std::string name = document.name();
  const auto reader = std::make_shared<config::Reader>(std::move(document));
  Input input = declare_input(*reader, needs);
  reader->finish();
  input.name = name;
  input.reader = reader;
  input.effective = reader->effective_yaml();
  draw_fleet(input);
  return input;
}

InputError fault_at(const Input& input, std::string key, std::string message, std::string hint) {
  if (input.reader) return InputError({input.reader->issue(key, std::move(message), std::move(hint))});
  return InputError({Issue{
      .file = input.name, .line = 0, .key = std::move(key), .message = std::move(message), .hint = std::move(hint)}});
}

}  // namespace cleave::app
