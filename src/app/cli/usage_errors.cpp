// Words for the three commonest slips: an unknown command, an unknown option, and nothing where something is needed.
#include "cli/usage_errors.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cleave/config/nearest.hpp"

namespace cleave::app {

namespace {

// The library asks for a command without a word of the one that was given.
std::string unknown_command(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  const std::string given = argc < 2 ? "-" : argv[1];
  if (given.starts_with('-') && app.get_subcommands().empty())
    return fmt::format("no command is given ({})", config::one_of(names));
  if (given.starts_with('-') || std::ranges::find(names, given) != names.end()) return {};
  return fmt::format("there is no command '{}' ({})", given, config::hint_for(given, names));
}

std::string unknown_argument(const CLI::App& command, const std::string& given) {
  const std::string name = given.substr(0, given.find('='));
  const std::string bare = given.substr(std::min(given.find_first_not_of('-'), given.size()));
  if (bare.size() == given.size()) return fmt::format("{} does not take '{}'", command.get_name(), given);
  std::string message = fmt::format("{} has no option {}", command.get_name(), name);
  // --train.steps=3: a setting of the input that is written like an option.
  if (bare.find('.') < bare.find('=')) return fmt::format("{} (a setting has no dashes: {})", message, bare);
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& word : option->get_lnames()) names.push_back("--" + word);
  }
  if (std::ranges::find(names, name) != names.end())
    return fmt::format("{} goes behind the command (cleave {} {})", name, command.get_name(), name);
  return fmt::format("{} ({})", message, config::hint_for(name, names));
}

// "train needs INPUT.yaml [key=value ...]", "info takes CHECKPOINT.h5, not 'a.h5' and 'b.h5'".
std::string wrong_number(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_positional() || !option->get_required()) continue;
    const auto given = static_cast<int>(option->results().size());
    if (given < option->get_items_expected_min())
      return fmt::format("{} needs {}", command.get_name(), option->get_description());
    if (given > option->get_items_expected_max())
      return fmt::format("{} takes {}, not '{}'", command.get_name(), option->get_description(),
                         fmt::join(option->results(), "' and '"));
  }
  return {};
}

}  // namespace

std::string say_usage_error(const CLI::App& app, const CLI::ParseError& error, int argc, const char* const* argv) {
  std::string message = unknown_command(app, argc, argv);
  std::string help = "cleave --help";
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  if (message.empty() && !parsed.empty()) {
    const CLI::App& command = *parsed.front();
    help = fmt::format("cleave {} --help", command.get_name());
    const std::vector<std::string> extras = app.remaining(true);
    if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !extras.empty())
      message = unknown_argument(command, extras.front());
    if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr ||
        dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
      message = wrong_number(command);
  }
  return fmt::format("{}\nRun '{}' for usage.", message.empty() ? error.what() : message, help);
}

}  // namespace cleave::app
