// Declarations of commands and options for CLI11.
#include "cli/command_line.hpp"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "cleave/base/error.hpp"
#include "cleave/base/version.hpp"
#include "cleave/checkpoint/library.hpp"
#include "cleave/comm/mpi.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "cli/descriptions.hpp"
#include "cli/one_file.hpp"
#include "cli/usage_errors.hpp"
#include "commands/session.hpp"

namespace cleave::app {

namespace {

// Every rank of mpirun reads the same command line; only the first one talks about it.
bool speaks() { return launcher_rank() == 0; }

std::string version_text() {
  return fmt::format("cleave {}\n{}\n{}, {} kernels\n{}", kVersion, comm::MpiSession::version(),
                     kernels::gemm_library(), kernels::name_of(kernels::best_gemm_kernels()),
                     checkpoint::checkpoint_library());
}

// Nothing was given, though something was meant: a variable of the caller's that is not set. Taken for the default it
// would start a run anew that was to go on.
std::string refuse_empty(const std::string& given) {
  return given.empty() ? "is empty (a variable that is not set?)" : std::string();
}

constexpr const char* kWithOverrides = "arguments";

void add_overrides(CLI::App* command, CommandLine& line, const char* what, int least) {
  command->add_option(kWithOverrides, line.files, what)->required(least > 0)->expected(least, -1);
}

// Positional arguments with '=' are overrides, where the command takes them, unless a file of that name exists: folders
// of sweeps are called lr=0.1.
void split_overrides(const CLI::App& command, CommandLine& line) {
  if (command.get_option_no_throw(kWithOverrides) == nullptr) return;
  std::vector<std::string> files;
  for (std::string& argument : line.files) {
    const std::size_t equals = argument.find('=');
    std::error_code ignored;  // such as that of a value too long for a name
    const bool is_key = equals != std::string::npos && equals > 0 && argument.find('/') > equals &&
                        !std::filesystem::exists(argument, ignored);
    (is_key ? line.overrides : files).push_back(std::move(argument));
  }
  line.files = std::move(files);
}

// Every command and option; what is given is written to `line` and `version`.
void declare(CLI::App& app, CommandLine& line, bool& version) {
  app.require_subcommand(1);
  app.add_flag("--version", version, "Print the versions of cleave and of what it runs on");
  app.footer(
      "Exit codes: 0 good, 1 environment, 2 bad input or usage, 3 a check did not hold, 4 a bug of ours, 75 stopped on "
      "request.");

  const auto with_input = [&](CLI::App* command) {
    add_overrides(command, line, "INPUT.yaml [key=value ...]", 1);
    command->add_flag("--dry-run", line.dry_run, "Parse, check, plan, print the effective input, stop");
    return command;
  };
  CLI::App* train =
      with_input(app.add_subcommand("train", "Train a model: mpirun -n R cleave train INPUT.yaml [key=value ...]"));
  CLI::Option* resume = train->add_option(
      "--resume", line.resume, "auto: go on from the newest whole checkpoint of output.dir; or a checkpoint file");
  resume->check(refuse_empty);
  train
      ->add_flag("--resume-with-changes", line.resume_with_changes,
                 "Settings that bits depend on may differ from the checkpoint's; says which")
      ->needs(resume);
  train->add_flag("--quiet", line.quiet, "No progress");
  train->add_flag("--verbose", line.verbose, "A line for every step, and more in the log");
  CLI::App* check =
      app.add_subcommand("check", "Train on reference files and compare: mpirun -n R cleave check REFERENCE.h5 ...");
  add_overrides(check, line, "REFERENCE.h5 ... [key=value ...]", 1);
  check->add_option("--json", line.json, "Write the figures to this file; -: to standard output")->check(refuse_empty);
  CLI::App* plan = with_input(app.add_subcommand("plan", "Show who computes which part of every operation"));
  plan->add_option("--json", line.json, "Write the plan to this file; -: to standard output")->check(refuse_empty);
  CLI::App* simulate = with_input(app.add_subcommand("simulate", "Simulate a step in virtual time, without numbers"));
  simulate->add_option("--system", line.systems, "Systems to compare, comma-separated, or all")
      ->allow_extra_args(false)
      ->delimiter(',');
  simulate->add_option("--json", line.json, "Write the figures to this file; -: to standard output")
      ->check(refuse_empty);
  simulate
      ->add_option("-o,--output", line.output, "Write report.html, and the records that it is made of, to this folder")
      ->check(refuse_empty);
  simulate->add_flag("--quiet", line.quiet, "No progress");
  plan->add_flag("--quiet", line.quiet, "No progress");
  CLI::App* generate = app.add_subcommand("generate", "Let a trained model write");
  generate->add_option("checkpoint", line.files, "CHECKPOINT.h5")->required()->expected(1);
  CLI::Option* prompt = generate->add_option("--prompt", line.prompt, "Text to go on from");
  generate->add_option("--prompt-tokens", line.prompt_tokens, "Token ids to go on from, comma-separated")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->excludes(prompt);
  generate->add_option("--tokens", line.tokens, fmt::format("Tokens to write; default: {}", line.tokens))
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  generate
      ->add_option("--temperature", line.temperature,
                   fmt::format("How freely tokens are drawn; 0: always the likeliest; default: {}", line.temperature))
      ->check([](const std::string& given) {
        double value = 0;
        return CLI::detail::lexical_cast(given, value) && value >= 0 && value <= 100
                   ? std::string()
                   : given + " is not a number from 0 to 100";  // NaN passes CLI::Range
      });
  generate->add_option("--seed", line.seed, fmt::format("Seed of the draws; default: {}", line.seed))
      ->check([](const std::string& given) {
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), value);
        return error == std::errc() && end == given.data() + given.size() ? std::string()
                                                                          : given + " is not a whole number below 2^64";
      });
  CLI::App* report = app.add_subcommand("report", "Show what happened in a run, or compare several, as one page");
  report->add_option("runs", line.files, "RUN_FOLDER ...")->required()->expected(1, -1);
  report
      ->add_option("-o,--output", line.output,
                   "File to write, - for standard output; default: report.html, in the folder of the only run or in "
                   "the current one")
      ->check(refuse_empty);
  CLI::App* info = app.add_subcommand("info", "Describe a checkpoint or reference file");
  info->add_option("checkpoint", line.files, "CHECKPOINT.h5")->required()->expected(1);
  info->add_flag("--hash", line.hash, "Print one hash over every parameter's bits, and nothing else");
  CLI::App* import = app.add_subcommand("import", "Make a checkpoint of a safetensors model");
  import->add_option("files", line.files, "MODEL.safetensors OUT.h5")->required()->expected(2);
  CLI::App* export_ = app.add_subcommand("export", "Write a checkpoint's parameters as safetensors");
  export_->add_option("files", line.files, "CHECKPOINT.h5 OUT.safetensors")->required()->expected(2);
  export_->add_option("--dtype", line.dtype, fmt::format("Type of the numbers; default: {}", line.dtype))
      ->check(CLI::IsMember({"f32", "bf16"}));
  CLI::App* calibrate = app.add_subcommand(
      "calibrate", "Measure this host and its ranks: mpirun -n R cleave calibrate [INPUT.yaml [key=value ...]]");
  add_overrides(calibrate, line, "INPUT.yaml of a study under the wall clock, refused if these hosts cannot carry it",
                0);
  calibrate
      ->add_option("-o,--output", line.output, "File for the server: and fleet: fragment; default: standard output")
      ->check(refuse_empty);
  CLI::App* describe = app.add_subcommand("describe", "Print the manual page, the bash completion, or every input key");
  describe->add_option("what", line.files, "manual, completion or inputs")
      ->required()
      ->expected(1)
      ->check(CLI::IsMember({"manual", "completion", "inputs"}));
}

int print_description(const CLI::App& app, const std::string& what) {
  const std::string text = what == "manual"       ? manual_page(app)
                           : what == "completion" ? bash_completion(app)
                                                  : input_reference();
  if (speaks()) std::fputs(text.c_str(), stdout);
  return static_cast<int>(ExitCode::good);
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv) {
  CommandLine line;
  CLI::App app{"Trains transformer language models on a fleet of weak, unlike, unreliable edge devices.", "cleave"};
  bool version = false;
  declare(app, line, version);

  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--version") {
      if (speaks()) std::puts(version_text().c_str());
      line.ended = static_cast<int>(ExitCode::good);
      return line;
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    line.ended = speaks() ? app.exit(help) : 0;
    return line;
  } catch (const CLI::ParseError& error) {
    if (speaks()) std::fprintf(stderr, "cleave: %s\n", say_usage_error(app, error, argc, argv).c_str());
    line.ended = static_cast<int>(ExitCode::bad_input);
    return line;
  }
  line.command = app.get_subcommands().front()->get_name();
  if (std::ranges::find(line.files, "") != line.files.end())
    throw InputError("an argument is empty", "a variable that is not set?");
  split_overrides(*app.get_subcommands().front(), line);
  for (const std::string& file : line.files) {
    for (const std::string& result : {line.json, line.output}) refuse_one_file(file, result);
  }
  if (line.command == "describe") line.ended = print_description(app, line.files.front());
  return line;
}

const std::string& only_input(const CommandLine& line) {
  if (line.files.empty())
    throw InputError(line.command + " needs an input file",
                     fmt::format("cleave {} INPUT.yaml [key=value ...]", line.command));
  if (line.files.size() > 1)
    throw InputError(fmt::format("{} takes one input file, not '{}'", line.command, fmt::join(line.files, "' and '")),
                     "a setting is written key=value, without blanks");
  return line.files.front();
}

}  // namespace cleave::app
