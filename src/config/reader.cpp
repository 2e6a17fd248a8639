// The end of a reading: unknown keys, order of faults, effective input, list of declarations.
#include "cleave/config/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <tuple>

#include "names.hpp"
#include "state.hpp"

namespace cleave::config {

namespace {

/// More faults than this are counted, not listed: a generated file can hold a million of one kind.
constexpr std::size_t kListedFaults = 100;

/// Dotted paths of all declarations, `[]` for list elements, in order of declaration.
void gather(const Schema& schema, const std::string& prefix, std::vector<Declaration>& found) {
  for (const auto& below : schema.children) {
    const bool element = below->name == "[]";
    const std::string path = element ? prefix + "[]" : prefix.empty() ? below->name : prefix + "." + below->name;
    if (below->declared) {
      found.push_back(below->declaration);
      found.back().key = path;
    }
    gather(*below, path, found);
  }
}

/// What may have been meant by a key that nobody asked for: a name of its own map, else the same name elsewhere.
std::string meant(const std::string& key, const Schema& schema, const std::vector<Declaration>& all) {
  std::vector<std::string> here;
  for (const auto& below : schema.children) {
    if (below->declared) here.push_back(below->name);
  }
  for (const std::string& name : schema.alternatives) {
    if (std::find(here.begin(), here.end(), name) == here.end()) here.push_back(name);
  }
  if (const std::string near = nearest(key, here); !near.empty() && near != key) {
    return fmt::format("did you mean {}?", near);
  }
  for (const Declaration& declaration : all) {
    if (declaration.key.ends_with("." + key)) return fmt::format("did you mean {}?", declaration.key);
  }
  return here.empty() ? std::string() : fmt::format("known here: {}", joined(here));
}

const char* mark(Origin origin) {
  switch (origin) {
    case Origin::by_default: return "default";
    case Origin::file: return "file";
    case Origin::command_line: return "command line";
  }
  return "";
}

// What stands behind a value.
std::string marked(Origin origin) { return fmt::format("  # {}\n", mark(origin)); }

void render(const Shown& shown, const std::string& indent, std::string& out) {
  std::string lead = indent;
  for (const auto& line : shown.children) {
    std::string key = line->key.empty() ? std::string() : line->key + ":";
    switch (line->form) {
      case Shown::Form::value: out += fmt::format("{}{} {}{}", lead, key, line->text, marked(line->origin)); break;
      case Shown::Form::map: {
        std::string below;
        if (shown.form == Shown::Form::list) {
          render(*line, indent + "  ", below);
          // The dash takes the place of two spaces before the first key.
          out += below.empty() ? indent + "- {}\n" : indent + "- " + below.substr(indent.size() + 2);
        } else {
          render(*line, indent + "  ", below);
          out += fmt::format("{}{}{}\n{}", lead, key, below.empty() ? " {}" : "", below);
        }
        break;
      }
      case Shown::Form::list:
        out += fmt::format("{}{}\n", lead, key);
        render(*line, indent + "  ", out);
        break;
    }
  }
}

// Where the key at a path stands, or the nearest map around it.
Node* place_of(Node& root, std::string_view path) {
  Node* place = &root;
  for (std::string_view rest = path; !rest.empty();) {
    const std::size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
    Node* next = child(*place, part);
    std::size_t index = 0;
    if (place->kind == NodeKind::list &&
        std::from_chars(part.data(), part.data() + part.size(), index).ec == std::errc() &&
        index < place->children.size()) {
      next = &place->children[index];
    }
    if (next == nullptr) break;
    place = next;
  }
  return place;
}

}  // namespace

std::string yaml_scalar(const std::string& text) {
  const auto plain_character = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_./+-").find(static_cast<char>(c)) != std::string_view::npos;
  };
  bool plain = !text.empty() && text.front() != ' ' && text.back() != ' ' && text.front() != '-' && text.back() != ':';
  for (const char c : text) plain = plain && (plain_character(static_cast<unsigned char>(c)) || c == ' ');
  // Words that YAML readers take for null or, some of them, for a truth value.
  for (const char* word : {"null", "Null", "NULL", "yes", "no", "on", "off", "y", "n"}) plain = plain && text != word;
  if (plain) return text;
  double number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size()) return text;  // -1.5
  std::string quoted_text = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted_text += '\\';
    if (c == '\n') {
      quoted_text += "\\n";
    } else if (c == '\t') {
      quoted_text += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      quoted_text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      quoted_text += c;
    }
  }
  return quoted_text + '"';
}

Reader::Reader(Document document) : state_(std::make_unique<Section::State>()) {
  state_->document = std::move(*document.parts_);
  state_->issues = std::move(state_->document.issues);
  Node& root = state_->document.root;
  root.read = true;
  root.line = 0;  // what is missing from the whole file has no line
  state_->maps.push_back({&root, &state_->schema, ""});
  root_ = Section({state_.get(), &root, &state_->schema, &state_->shown, "", false});
}

Reader Reader::for_reference() {
  Reader reader{Document()};
  reader.state_->reference = true;
  reader.root_->place_->muted_ = true;
  return reader;
}

Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;
Reader::~Reader() = default;

const Section& Reader::root() const { return *root_; }

void Reader::fault(std::string_view path, std::string message, std::string hint) {
  state_->fault(place_of(state_->document.root, path), std::string(path), std::move(message), std::move(hint));
}

Issue Reader::issue(std::string_view path, std::string message, std::string hint) const {
  return state_->issue(place_of(state_->document.root, path), std::string(path), std::move(message), std::move(hint));
}

std::vector<Issue> Reader::issues() const {
  std::vector<Issue> sorted = state_->issues;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Issue& a, const Issue& b) {
    // What has no file comes last with the command line: its lines are no lines.
    const auto rank = [](const Issue& issue) { return issue.file == kCommandLine ? 1 : 0; };
    return std::tuple(rank(a), std::string_view(a.file), a.line) <
           std::tuple(rank(b), std::string_view(b.file), b.line);
  });
  return sorted;
}

void Reader::finish() {
  if (state_->reference) return;
  const std::vector<Declaration> all = describe();
  std::size_t unknown = 0;
  for (const Section::State::Map& map : state_->maps) {
    for (const Node& node : map.node->children) {
      if (node.read || ++unknown > kListedFaults) continue;
      const std::string name = shown_key(node.key);
      state_->fault(&node, map.path.empty() ? name : map.path + "." + name, "unknown key",
                    meant(node.key, *map.schema, all));
    }
  }
  if (state_->issues.empty()) return;
  std::vector<Issue> found = issues();
  const std::size_t total = found.size() + unknown - std::min(unknown, kListedFaults);
  if (total > kListedFaults) {
    found.resize(kListedFaults);
    found.push_back({state_->document.name, 0, "", fmt::format("{} more faults", total - kListedFaults), ""});
  }
  throw InputError(std::move(found));
}

std::string Reader::effective_yaml() const {
  std::string text;
  render(state_->shown, "", text);
  return text;
}

std::vector<Declaration> Reader::describe() const {
  std::vector<Declaration> found;
  gather(state_->schema, "", found);
  return found;
}

bool is_effective_yaml(std::string_view text) {
  return text.find(marked(Origin::by_default)) != std::string_view::npos;
}

}  // namespace cleave::config
