// The checkpoint's settings beside the input's.
#include "commands/resume.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <filesystem>
#include <limits>

#include "cleave/base/error.hpp"
#include "cleave/checkpoint/folder.hpp"
#include "input/run_settings.hpp"
#include "output/verdict.hpp"

namespace cleave::app {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDecay = "train.lr_decay_steps";

// The newest whole checkpoint of the run's folder that no verdict speaks of.
std::optional<fs::path> find_newest(const fs::path& folder, std::vector<std::string>& notices) {
  const std::optional<Verdict> verdict = find_verdict(folder);
  const std::int64_t up_to = verdict ? verdict->after_step : std::numeric_limits<std::int64_t>::max();
  const checkpoint::NewestCheckpoint newest = checkpoint::newest_whole_checkpoint(folder, up_to);
  for (const checkpoint::DamagedCheckpoint& damaged : newest.skipped)
    notices.push_back(fmt::format("skipped {}: {}", damaged.path.string(), damaged.reason));
  if (newest.found) return newest.found->path;
  notices.push_back(fmt::format("no checkpoint in {}: starting anew", folder.string()));
  return std::nullopt;
}

void keep_decay(const RunSettings& then, const fs::path& from, Input& input, server::TrainerOptions& options,
                std::vector<std::string>& notices) {
  const auto found = then.find(kDecay);
  if (input.decay_given || found == then.end()) return;
  std::int64_t value = 0;
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0 || value == input.train.lr_decay_steps)
    return;
  notices.push_back(fmt::format("{} stays {}, as in {}: the input gives none, and train.steps is {} now", kDecay, value,
                                from.string(), input.train.steps));
  input.train.lr_decay_steps = options.train.lr_decay_steps = value;
  note_effective(input, "lr_decay_steps", value, from.filename().string());
}

// One that a liar had a part in is not gone on from by mistake.
void refuse_condemned(const fs::path& from, std::int64_t step) {
  const fs::path folder = from.has_parent_path() ? from.parent_path() : fs::path(".");
  const std::optional<Verdict> verdict = find_verdict(folder);
  if (!verdict || step <= verdict->after_step) return;
  throw InputError(
      fmt::format("{} is of a step in which device {} had a part that was not checked, and which was to be taken back",
                  from.string(), fmt::join(values_of(verdict->devices), ", ")),
      fmt::format("--resume auto goes on from before that; {} tells it", (folder / "verdict.json").string()));
}

// Which checkpoint of a folder is the newest is told by their names.
void refuse_other_name(const fs::path& folder, const fs::path& from, std::int64_t step) {
  for (const checkpoint::CheckpointFile& file : checkpoint::find_checkpoints(folder)) {
    std::error_code error;
    if (file.step == step || !fs::equivalent(file.path, from, error)) continue;
    throw InputError(
        fmt::format("{} is of step {}: it has another one's name", from.string(), step),
        fmt::format("its own name is {}; --resume goes on from a file outside of the run's folder, whatever "
                    "it is called",
                    checkpoint::checkpoint_path("", step).string()));
  }
}

// A checkpoint of a program that wrote no settings says these two.
RunSettings old_settings(const server::RunState& state) { return {{"train.seed", fmt::format("{}", state.seed)}}; }

}  // namespace

std::optional<Resumed> resume_run(const CommandLine& line, Input& input, const TrainingData& data,
                                  server::TrainerOptions& options, server::ParameterStore& parameters,
                                  std::vector<std::string>& notices) {
  fs::path from = line.resume;
  std::optional<FolderLock> lock;
  if (line.resume == "auto") {
    std::error_code error;
    if (!line.dry_run && fs::is_directory(input.output, error)) lock = FolderLock::take(input.output);
    const std::optional<fs::path> newest = find_newest(input.output, notices);
    if (!newest) return std::nullopt;
    from = *newest;
  }
  server::RunState state = server::load_checkpoint(from, parameters, options.model);
  refuse_condemned(from, state.step);
  refuse_other_name(input.output, from, state.step);
  RunSettings then = settings_from(state.settings);
  if (then.empty()) {
    then = old_settings(state);
    notices.push_back(
        fmt::format("{} does not say which settings it was trained with: only model, seed and characters are compared",
                    from.string()));
  }
  keep_decay(then, from, input, options, notices);
  std::vector<std::string> changes = differences(then, run_settings(input, data, options.fleet.gemm_kernels));
  if (!state.tokenizer.empty() && !data.tokenizer.empty() && state.tokenizer != data.tokenizer)
    changes.emplace_back("data.text: other characters than the tokenizer had");
  if (!changes.empty()) {
    const std::string text =
        fmt::format("{} was trained with other settings: {}", from.string(), fmt::join(changes, ", "));
    if (!line.resume_with_changes) {
      throw InputError(text,
                       "give the same; or --resume-with-changes, and the run goes on to other bits; or start a new "
                       "run from its parameters with model.init");
    }
    notices.push_back(text);
  }
  const Continuation how{.from = from, .step = state.step, .same_run = line.resume == "auto" && changes.empty()};
  state.seed = input.train.seed;
  state.tokenizer = data.tokenizer;
  return Resumed{how, std::move(state), std::move(lock)};
}

}  // namespace cleave::app
