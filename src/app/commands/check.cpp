// cleave check: trains on reference files with the whole system and compares with what an independent float64 run
// found.
//
// Limits are those of tests/golden/README.md: loss 2e-5, gradient norm 5e-5 relative, logits 5e-5, gradients of step 0
// 2e-5 relative L2 per tensor, final parameters 1e-3 of the update's L2 per tensor. Where the exact gradient is zero
// (key biases), its absolute value must stay below 1e-6.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cleave/base/error.hpp"
#include "cleave/checkpoint/reference.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "cleave/model/family.hpp"
#include "cleave/server/checkpointing.hpp"
#include "cleave/server/trainer.hpp"
#include "cli/failures.hpp"
#include "cli/result_file.hpp"
#include "commands/commands.hpp"
#include "commands/session.hpp"
#include "input/input.hpp"
#include "input/run_setup.hpp"

namespace cleave::app {

namespace {

constexpr double kLossLimit = 2e-5, kNormLimit = 5e-5, kLogitsLimit = 5e-5, kGradientLimit = 2e-5, kUpdateLimit = 1e-3,
                 kNoiseLimit = 1e-6;

constexpr const char* kChangeable = "fleet, server, plan and verify can be changed";

// A small fleet of unlike devices, so that every operation is cut; overrides change it.
constexpr const char* kFleet = R"(
fleet:
  seed: 42
  devices:
    - {name: phone, count: 6, compute: [0.7 TFLOP/s, 2.2 TFLOP/s], memory: 512 MiB, downlink: [80 Mbit/s, 800 Mbit/s], uplink: [40 Mbit/s, 80 Mbit/s], latency: 10 ms}
    - {name: laptop, count: 2, compute: 4 TFLOP/s, memory: 4 GiB, downlink: 300 Mbit/s, uplink: 100 Mbit/s, latency: 5 ms}
)";

Input check_settings(const CommandLine& line) {
  config::Document document = config::Document::parse(kFleet, "check");
  document.apply(line.overrides);
  config::Reader reader(std::move(document));
  Input input = declare_input(reader, Needs::no_data);
  input.verify.rollback = 0;  // nobody asks for steps to be taken back
  for (const std::string& override_ : line.overrides) {
    const std::string key = override_.substr(0, override_.find('=')), section = key.substr(0, key.find('.'));
    if (section == "model" || section == "train" || section == "data") {
      reader.fault(key, "check takes it from the reference file", kChangeable);
    } else if (section == "checkpoint" || section == "output" || section == "simulate") {
      reader.fault(key, "check does nothing of the kind", kChangeable);
    }
  }
  // What check asks for by itself is not the user's choice.
  if (input.step.layout.layout == sched::Layout::stages && !input.verify_given) {
    input.verify.mode = server::VerifyMode::off;
    input.verify_open = false;
  }
  std::ignore = settle_verification(input, input.step.layout.layout);
  refuse_unready_stages(input, [&](const char* section, const char* key, const char* what, const char* hint) {
    reader.fault(fmt::format("{}.{}", section, key), what, hint);
  });
  reader.finish();
  draw_fleet(input);
  return input;
}

double number(const checkpoint::Reference& r, const char* name) {
  const auto value = checkpoint::find_number(r.attributes, name);
  if (!value) throw InputError(fmt::format("the reference file lacks the attribute {}", name));
  return *value;
}

server::TrainSettings train_settings(const checkpoint::Reference& r) {
  server::TrainSettings t;
  const auto whole = [&](const char* name) { return static_cast<std::int64_t>(std::llround(number(r, name))); };
  t.steps = r.batches.steps;
  t.lr = number(r, "lr");
  t.min_lr = number(r, "min_lr");
  t.warmup_steps = whole("warmup_steps");
  t.lr_decay_steps = whole("lr_decay_steps");
  t.beta1 = number(r, "beta1");
  t.beta2 = number(r, "beta2");
  t.adam_eps = number(r, "adam_eps");
  t.weight_decay = number(r, "weight_decay");
  t.grad_clip = number(r, "grad_clip");
  return t;
}

// One figure that was compared: the worst case, and its limit.
struct Figure {
  std::string name, where;
  double worst = 0, limit = 0;
  void take(double error, const std::string& at) {
    if (std::isnan(error) || error >= worst) {
      worst = std::isnan(error) ? INFINITY : error;
      where = at;
    }
  }
  [[nodiscard]] bool holds() const { return worst <= limit; }
};

bool is_noise(const checkpoint::ReferenceTensor& t, std::size_t i) {
  const auto index = static_cast<std::int64_t>(i);
  return t.noise && index >= t.noise->begin && index < t.noise->end;
}

const checkpoint::ReferenceTensor& find(const std::vector<checkpoint::ReferenceTensor>& list, std::string_view name) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const auto& t) { return t.name == name; });
  if (found == list.end()) throw InputError(fmt::format("the reference file lacks expected values of {}", name));
  return *found;
}

data::Batch batch_of(const checkpoint::Reference& r, std::int64_t step) {
  const std::int64_t size = r.batches.batch * r.batches.seq_len;
  const auto slice = [&](const std::vector<std::int32_t>& all) {
    return std::vector<std::int32_t>(all.begin() + step * size, all.begin() + (step + 1) * size);
  };
  return {.rows = r.batches.batch,
          .seq = r.batches.seq_len,
          .tokens = slice(r.batches.tokens),
          .targets = slice(r.batches.targets)};
}

std::vector<Figure> compare(const checkpoint::Reference& r, server::ParameterStore& parameters,
                            server::Trainer& trainer) {
  Figure loss{"loss", "", 0, kLossLimit}, norm{"grad_norm (relative)", "", 0, kNormLimit},
      logits{"logits_step0", "", 0, kLogitsLimit}, gradients{"grads_step0 (relative L2)", "", 0, kGradientLimit},
      noise{"grads_step0 where exactly 0", "", 0, kNoiseLimit},
      final{"params_final (of the update)", "", 0, kUpdateLimit}, after{"loss_after", "", 0, kLossLimit};

  const data::Batch first = batch_of(r, 0);
  const std::vector<float> z =
      trainer.logits(std::span(first.tokens).first(static_cast<std::size_t>(r.batches.seq_len)));
  for (std::size_t i = 0; i < z.size(); ++i)
    logits.take(std::abs(static_cast<double>(z[i]) - r.logits_step0[i]), fmt::format("element {}", i));

  const auto observe = [&](std::string_view name, std::span<const float> gradient) {
    const checkpoint::ReferenceTensor& expected = find(r.grads_step0, name);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double g = static_cast<double>(gradient[i]);
      if (is_noise(expected, i)) {
        noise.take(std::abs(g), std::string(name));
        continue;
      }
      error += (g - expected.values[i]) * (g - expected.values[i]);
      size += expected.values[i] * expected.values[i];
    }
    gradients.take(size > 0 ? std::sqrt(error / size) : std::sqrt(error), std::string(name));
  };
  for (std::int64_t s = 0; s < r.batches.steps; ++s) {
    const server::StepResult result =
        trainer.step(s, batch_of(r, s), {}, s == 0 ? server::GradientObserver(observe) : server::GradientObserver());
    const auto i = static_cast<std::size_t>(s);
    loss.take(std::abs(result.outcome.loss - r.loss[i]), fmt::format("step {}", s));
    norm.take(std::abs(result.outcome.grad_norm / r.grad_norm[i] - 1), fmt::format("step {}", s));
  }
  const std::vector<data::Batch> batches{first};
  after.take(std::abs(trainer.evaluate(batches) - r.loss_after), "batch 0");

  for (const checkpoint::Tensor& init : r.init) {
    const checkpoint::ReferenceTensor& expected = find(r.params_final, init.name);
    const server::Parameter& p = parameters.at(init.name);
    double error = 0, update = 0;
    for (std::size_t i = 0; i < p.value.size(); ++i) {
      if (is_noise(expected, i)) continue;
      const double d = static_cast<double>(p.value[i]) - expected.values[i],
                   u = expected.values[i] - static_cast<double>(init.data[i]);
      error += d * d;
      update += u * u;
    }
    final.take(update > 0 ? std::sqrt(error / update) : std::sqrt(error), init.name);
  }
  return {loss, norm, logits, gradients, noise, final, after};
}

nlohmann::ordered_json report(const std::string& file, const std::vector<Figure>& figures, std::uint64_t hash,
                              std::FILE* table) {
  nlohmann::ordered_json entry{{"file", file}, {"holds", true}, {"parameters_hash", fmt::format("{:016x}", hash)}};
  for (const Figure& f : figures) {
    std::fprintf(table, "  %-30s %10.3e  limit %.0e  %s%s\n", f.name.c_str(), f.worst, f.limit,
                 f.holds() ? "ok" : "FAILED", f.holds() ? "" : fmt::format(" at {}", f.where).c_str());
    entry["figures"].push_back(
        {{"name", f.name}, {"worst", f.worst}, {"limit", f.limit}, {"where", f.where}, {"holds", f.holds()}});
    if (!f.holds()) entry["holds"] = false;
  }
  return entry;
}

}  // namespace

int check(const CommandLine& line, int argc, char** argv) {
  const Input input = check_settings(line);
  if (line.files.empty()) throw InputError("check takes at least one reference file");
  Session session(argc, argv);
  std::FILE* const table = is_standard_output(line.json) ? stderr : stdout;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  const auto find_place = [&] {
    need_folder_of_result(line.json);
    return 0;
  };
  const int place = session.is_server() ? with_exit_code(find_place) : 0;  // of the figures: before all the work
  int worst = 0;
  std::optional<std::vector<server::RankInfo>> missing;  // once goodbye is said, the ranks that did not answer it
  for (const std::string& file : line.files) {
    std::optional<checkpoint::Reference> reference;
    server::TrainerOptions options;
    int code = place;
    comm::MpiTransportOptions transport;
    if (session.is_server() && code == 0) {
      code = with_exit_code([&] {
        transport = transport_options(input);
        reference = checkpoint::read_reference(file);
        options = trainer_options(input);
        options.model = server::config_from(reference->attributes, file);
        options.train = train_settings(*reference);
        options.batch = reference->batches.batch;
        options.clip = options.train.grad_clip > 0;
        kernels::select_gemm_kernels(*kernels::parse_gemm_kernels(options.fleet.gemm_kernels));
        return 0;
      });
    }
    code = session.share_start_code(code, transport);
    if (code != 0) {  // the other files are looked at nevertheless
      results.push_back({{"file", file}, {"holds", false}});
      worst = std::max(worst, code);
      continue;
    }
    if (!session.is_server()) {
      (void)session.serve();
      continue;
    }
    missing.reset();
    code = with_exit_code([&] {
      server::ParameterStore parameters(model::build_step(
          options.model, {.kind = model::StepKind::evaluate, .batch = 1, .clip = false, .freeze = {}, .loss_rows = 0}));
      server::load_parameters(file, parameters);
      server::Trainer trainer(parameters, options, &session.devices());
      int found = 0;
      try {
        const std::vector<Figure> figures = compare(*reference, parameters, trainer);
        std::fprintf(table, "%s: %s, %lld steps, %d rank%s\n", file.c_str(), options.model.family.c_str(),
                     static_cast<long long>(reference->batches.steps), session.size(), session.size() > 1 ? "s" : "");
        results.push_back(report(file, figures, parameters.hash(), table));
        if (!results.back()["holds"].get<bool>()) found = static_cast<int>(ExitCode::check_failed);
      } catch (...) {
        missing = trainer.say_goodbye(Seconds(30));
        throw;
      }
      missing = trainer.say_goodbye(Seconds(30));
      return found;
    });
    if (!missing) session.dismiss();
    worst = std::max(worst, code);
    std::fflush(table);
    if (missing && !missing->empty()) break;
  }
  if (session.is_server() && place == 0 && !line.json.empty()) {
    const int code = with_exit_code([&] {
      write_result(line.json, results.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
      return 0;
    });
    worst = std::max(worst, code);
  }
  session.finish(missing.value_or(std::vector<server::RankInfo>()), worst);
  return worst;
}

}  // namespace cleave::app
