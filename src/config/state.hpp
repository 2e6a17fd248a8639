// What a Reader gathers while its sections are read: faults, declarations, the effective input; and where a section is.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cleave/config/reader.hpp"
#include "node.hpp"

namespace cleave::config {

/// The declarations at one place, merged over the elements of a list.
struct Schema {
  std::string name{};  ///< last part of the path; "[]" for the elements of a list
  Declaration declaration{};
  bool declared = false;  ///< not merely a way to the declarations below it
  std::vector<std::unique_ptr<Schema>> children{};
  std::set<std::string> alternatives{};  ///< names that are legal below, though the branch they stand for was not read

  /// The child by name, made on first use.
  Schema& at(std::string_view child_name) {
    for (const auto& known : children) {
      if (known->name == child_name) return *known;
    }
    children.push_back(std::make_unique<Schema>());
    children.back()->name = child_name;
    return *children.back();
  }
};

enum class Origin : unsigned char { by_default, file, command_line };

/// One line of the effective input, or a map or list with lines below it.
struct Shown {
  enum class Form : unsigned char { value, map, list };
  Form form = Form::value;
  std::string key{};
  std::string text{};  ///< YAML of a value
  Origin origin = Origin::by_default;
  std::vector<std::unique_ptr<Shown>> children{};

  Shown& add(Form child_form, std::string_view child_key) {
    children.push_back(std::make_unique<Shown>());
    children.back()->form = child_form;
    children.back()->key = child_key;
    return *children.back();
  }
};

/// `text` as a YAML scalar: plain where every reader takes it for the same text, else in double quotes.
[[nodiscard]] std::string yaml_scalar(const std::string& text);

struct Section::State {
  Document::Parts document{};
  Schema schema{.name = {}};
  Shown shown{.form = Shown::Form::map};
  std::vector<Issue> issues{};
  std::set<std::string, std::less<>> faulted{};  ///< full paths
  struct Map {
    Node* node;
    const Schema* schema;
    std::string path;
  };
  std::vector<Map> maps{};  ///< whose keys were asked for
  bool reference = false;

  /// Notes a fault; `node` is where it stands, null for none.
  void fault(const Node* node, const std::string& path, std::string message, std::string hint) {
    if (reference) return;
    faulted.insert(path);
    issues.push_back(issue(node, path, std::move(message), std::move(hint)));
  }

  [[nodiscard]] Issue issue(const Node* node, std::string path, std::string message, std::string hint) const {
    const bool command_line = node != nullptr && node->from_command_line;
    return {command_line ? std::string(kCommandLine) : document.name, node != nullptr ? node->line : 0, std::move(path),
            std::move(message), std::move(hint)};
  }
};

/// Where a section is, and how the keys of its map are declared, found and read.
struct Section::Place {
  State* state_;
  Node* node_;      ///< null where the map is absent
  Schema* schema_;  ///< what has been declared at this place
  Shown* shown_;    ///< its part of the effective input
  std::string path_;
  bool muted_;  ///< the map itself is faulty or hypothetical: missing keys are no news

  [[nodiscard]] Node* find(std::string_view key) const;
  [[nodiscard]] std::string child_path(std::string_view key) const;
  void fault(std::string_view key, std::string message, std::string hint = {}) const;
  [[nodiscard]] Node* declare(std::string_view key, Declaration declaration, bool has_default, bool optional) const;
  void show(std::string_view key, std::string text, const Node* node) const;

  template <class T, class D>
  [[nodiscard]] Node* declare_bounded(std::string_view key, const Bounded<T, D>& declared, const char* form) const;
  template <class T>
  [[nodiscard]] T read_bounded(std::string_view key, const Bounded<T>& declared) const;
  template <class T>
  [[nodiscard]] Range<T> read_range(std::string_view key, const Drawn<T>& declared) const;
  template <class T, class D>
  [[nodiscard]] std::optional<T> checked(std::string_view key, const Node& node, const Bounded<T, D>& declared) const;
  [[nodiscard]] const std::string* scalar(std::string_view key, const Node& node) const;
  [[nodiscard]] std::optional<std::vector<const Node*>> scalars(std::string_view key, const Node& node) const;
  [[nodiscard]] Path resolve(const std::string& written, const Node* node) const;
};

}  // namespace cleave::config
