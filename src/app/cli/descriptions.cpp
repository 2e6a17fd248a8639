// Walks CLI11's declarations (manual page, completion) and the input's (reference page).
#include "cli/descriptions.hpp"

#include <fmt/format.h>

#include <CLI/Option.hpp>
#include <algorithm>
#include <string_view>
#include <vector>

#include "cleave/base/version.hpp"
#include "cleave/config/reader.hpp"
#include "input/input.hpp"

namespace cleave::app {

namespace {

// The texts of CLI11 are not const-correct about subcommands, hence the pointer.
std::vector<const CLI::App*> commands_of(const CLI::App& program) {
  return program.get_subcommands([](const CLI::App* command) { return !command->get_name().empty(); });
}

std::vector<const CLI::Option*> options_of(const CLI::App& command) {
  return command.get_options([](const CLI::Option* option) { return option->nonpositional(); });
}

// Text as troff takes it: a hyphen is a minus, a dot or quote that opens a line is no request.
std::string troff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '-') {
      out += "\\-";
    } else if (c == '\\') {
      out += "\\e";
    } else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
      out += fmt::format("\\&{}", c);
    } else {
      out += c;
    }
  }
  return out;
}

// "--json FILE": what an option takes, where it takes something.
std::string synopsis_of(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_snames()) names += fmt::format("{}-{}", names.empty() ? "" : ", ", name);
  for (const std::string& name : option.get_lnames()) names += fmt::format("{}--{}", names.empty() ? "" : ", ", name);
  if (option.get_expected_max() == 0) return names;
  // CLI11 adds the allowed range after a colon; the description says it in words.
  std::string type = option.get_type_name();
  type.resize(std::min(type.find(':'), type.size()));
  return names + " " + (type.empty() ? "VALUE" : type);
}

std::string options_section(const CLI::App& command) {
  std::string page;
  for (const CLI::Option* option : options_of(command)) {
    std::string text = option->get_description();
    if (!option->get_default_str().empty()) text += fmt::format(" (default: {})", option->get_default_str());
    page += fmt::format(".TP\n.B {}\n{}\n", troff(synopsis_of(*option)), troff(text));
  }
  return page;
}

std::string names_of(const CLI::App& command) {
  std::string words;
  for (const CLI::Option* option : options_of(command)) {
    for (const std::string& name : option->get_snames()) words += fmt::format("{}-{}", words.empty() ? "" : " ", name);
    for (const std::string& name : option->get_lnames()) words += fmt::format("{}--{}", words.empty() ? "" : " ", name);
  }
  return words;
}

// In a table of Markdown a bar ends the cell.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string code(std::string_view text) { return text.empty() ? "" : fmt::format("`{}`", cell(text)); }

std::string row_of(const config::Declaration& key, std::string_view section) {
  std::string_view name = key.key;
  if (name.starts_with(section)) name.remove_prefix(section.size());
  if (name.starts_with('.')) name.remove_prefix(1);
  std::string type = cell(key.type);
  if (!key.unit.empty()) type += fmt::format(", as {}", code(key.unit));
  if (!key.range.empty()) type += fmt::format(", {}", cell(key.range));
  return fmt::format("| `{}` | {} | {} | {} |\n", name, type,
                     key.required ? "required" : (key.default_value.empty() ? "–" : code(key.default_value)),
                     cell(key.help));
}

bool has_keys(const config::Declaration& key) {
  return key.type == "section" || key.type == "list" || key.type.find("{keys}") != std::string::npos;
}

// The innermost section around a key: "fleet.devices" for "fleet.devices[].name".
std::string_view section_of(std::string_view key, const std::vector<config::Declaration>& keys) {
  std::string_view found;
  for (const config::Declaration& section : keys) {
    if (!has_keys(section) || section.key.size() <= found.size() || !key.starts_with(section.key)) continue;
    if (const std::string_view rest = key.substr(section.key.size()); rest.starts_with('.') || rest.starts_with('['))
      found = section.key;
  }
  return found;
}

}  // namespace

std::string manual_page(const CLI::App& program) {
  std::string page = fmt::format(
      ".\\\" Made by `cleave describe manual` of the program's own declarations.\n"
      ".TH CLEAVE 1 \"\" \"cleave {}\" \"User Commands\"\n.SH NAME\ncleave \\- {}\n.SH SYNOPSIS\n",
      kVersion, troff(program.get_description()));
  for (const CLI::App* command : commands_of(program))
    page += fmt::format(".B cleave {}\n.RI [ options ]\n.I arguments\n.br\n", troff(command->get_name()));
  page += ".SH OPTIONS\n" + options_section(program) + ".SH COMMANDS\n";
  for (const CLI::App* command : commands_of(program)) {
    page += fmt::format(".SS {}\n{}.\n", troff(command->get_name()), troff(command->get_description()));
    for (const CLI::Option* option : command->get_options([](const CLI::Option* o) { return o->get_positional(); }))
      page += fmt::format(".P\nArguments: {}\n", troff(option->get_description()));
    page += options_section(*command);
  }
  page += fmt::format(".SH EXIT STATUS\n{}\n", troff(program.get_footer()));
  page += ".SH SEE ALSO\n.BR mpirun (1),\ndocs/interface.md, docs/inputs.md\n";
  return page;
}

std::string bash_completion(const CLI::App& program) {
  std::string names, cases;
  for (const CLI::App* command : commands_of(program)) {
    names += (names.empty() ? "" : " ") + command->get_name();
    cases += fmt::format("    {}) options='{}' ;;\n", command->get_name(), names_of(*command));
  }
  return fmt::format(
      R"(# Completion of cleave for bash; made by `cleave describe completion` of the program's own declarations.
_cleave() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} command= options= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case " {0} " in *" ${{COMP_WORDS[i]}} "*) command=${{COMP_WORDS[i]}}; break ;; esac
  done
  case $command in
    '') options='{0} {1}' ;;
{2}  esac
  mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
  # Neither a command nor an option: a file.
  if [ -n "$command" ] && [[ $word != -* ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
    compopt -o filenames 2> /dev/null
  fi
}}
complete -F _cleave cleave
)",
      names, names_of(program), cases);
}

std::string input_reference() {
  config::Reader reader = config::Reader::for_reference();
  (void)declare_input(reader, Needs::no_data);
  std::string page =
      "# Inputs\n\n"
      "Every key of an input file. Made by `build/release/cleave describe inputs > docs/inputs.md` of the "
      "declarations\n"
      "that the program reads inputs with; a test fails where the two differ. [interface.md](interface.md) has an\n"
      "example and what units mean; `cleave train INPUT.yaml --dry-run` prints an input as it is understood, each "
      "value\n"
      "marked default, file or command line.\n\n"
      "Where a range of a quantity is allowed, `[low, high]` draws it uniformly for each device. `–`: no default; the "
      "key\n"
      "may be left out.\n";
  const std::vector<config::Declaration> keys = reader.describe();
  for (const config::Declaration& section : keys) {
    if (!has_keys(section)) continue;
    const bool top = section.key.find('.') == std::string::npos;
    page += fmt::format("\n{} `{}`\n\n{}\n\n| key | value | default | meaning |\n|---|---|---|---|\n",
                        top ? "##" : "###", section.key, section.help);
    for (const config::Declaration& key : keys) {
      const bool shown_as_table = key.type == "section" || key.type == "list";
      if (!shown_as_table && section_of(key.key, keys) == section.key) page += row_of(key, section.key);
    }
  }
  return page;
}

}  // namespace cleave::app
