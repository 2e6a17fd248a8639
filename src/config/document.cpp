// Loading with bounds, checking that it is text, and overrides.
#include "cleave/config/document.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>

#include "names.hpp"
#include "node.hpp"

namespace cleave::config {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse(const std::string& name, int line, std::string message, std::string hint = {}) {
  throw InputError(std::vector<Issue>{{name, line, "", std::move(message), std::move(hint)}});
}

std::string read_bounded_file(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) refuse(path.string(), 0, "is a folder, not a file");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) refuse(path.string(), 0, fmt::format("cannot be read: {}", std::strerror(errno)));
  std::string text;
  std::array<char, 1 << 16> buffer{};
  for (;;) {
    const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), file.get());
    text.append(buffer.data(), count);
    if (static_cast<std::int64_t>(text.size()) > kMaxFileBytes) {
      refuse(path.string(), 0, fmt::format("is larger than {} MiB", kMaxFileBytes >> 20));
    }
    if (count < buffer.size()) break;
  }
  if (std::ferror(file.get()) != 0) refuse(path.string(), 0, fmt::format("cannot be read: {}", std::strerror(errno)));
  return text;
}

void require_text(std::string_view text, const std::string& name) {
  int line = 1;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = static_cast<unsigned char>(text[at]);
    const std::size_t length = utf8_length(text, at);
    if (length == 0) refuse(name, line, "is not UTF-8 text");
    if ((c < 0x20 && c != '\n' && c != '\t' && c != '\r') || c == 0x7F) {
      refuse(name, line, fmt::format("holds the control character 0x{:02x}", c), "is it a text file?");
    }
    if (c == '\n') ++line;
    at += length;
  }
}

/// Marks a value of the command line, all of it.
void mark_command_line(Node& node) {
  node.from_command_line = true;
  node.line = 0;
  for (Node& below : node.children) mark_command_line(below);
}

Issue override_issue(std::string key, std::string message, std::string hint = {}) {
  return {kCommandLine, 0, std::move(key), std::move(message), std::move(hint)};
}

/// Parses the right side of an assignment; appends to `issues` and returns false where it cannot.
bool parse_value(const std::string& key, std::string_view written, Node& value, std::vector<Issue>& issues) {
  const std::string_view text = trimmed(written);
  if (text.empty()) {
    issues.push_back(override_issue(key, "has no value", fmt::format("{}=~ goes back to the default", key)));
    return false;
  }
  const bool yaml = std::string_view("[{\"'").find(text.front()) != std::string_view::npos;
  if (!yaml) {
    value = Node{.kind = text == "~" || text == "null" ? NodeKind::null : NodeKind::scalar};
    value.text = text;
    return true;
  }
  std::vector<Issue> faults;
  try {
    require_text(text, kCommandLine);
    value = parse_yaml(std::string(text), kCommandLine, faults);
  } catch (const InputError& error) { faults = error.issues(); }
  for (Issue& fault : faults) {
    fault.line = 0;
    fault.key = fault.key.empty() ? key : key + "." + fault.key;
    issues.push_back(std::move(fault));
  }
  return faults.empty();
}

/// The index that a part of a path is; none where it is no number.
std::optional<std::size_t> element(const std::string& part) {
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
  return error == std::errc() && end == part.data() + part.size() ? std::optional(index) : std::nullopt;
}

Issue no_element(const Node& list, const std::string& part, const std::string& key) {
  return override_issue(key, fmt::format("{} is no element of the list", in_quotes(part)),
                        fmt::format("it has {}, counted from 0", list.children.size()));
}

/// The node at `part` below `parent`, made where it may be; null (and an issue) where it may not.
Node* step_into(Node& parent, const std::string& part, const std::string& key, std::vector<Issue>& issues) {
  if (parent.kind == NodeKind::list) {
    const std::optional<std::size_t> index = element(part);
    if (!index || *index > parent.children.size()) {
      issues.push_back(no_element(parent, part, key));
      return nullptr;
    }
    if (*index == parent.children.size()) parent.children.push_back(Node{.from_command_line = true});
    return &parent.children[*index];
  }
  if (parent.kind != NodeKind::map) {  // a scalar or nothing gives way to a map: `churn: none` to `churn.trace=F`
    parent.kind = NodeKind::map;
    parent.text.clear();
    parent.from_command_line = true;
    parent.unset = false;
    parent.line = 0;
  }
  if (Node* found = child(parent, part)) return found;
  Node fresh{.from_command_line = true};
  fresh.key = part;
  parent.children.push_back(std::move(fresh));
  return &parent.children.back();
}

/// Takes what is at the path away. Of a key that is not there the name stays, for the reader to know or to refuse.
void remove_path(Node& root, const std::vector<std::string>& parts, const std::string& key,
                 std::vector<Issue>& issues) {
  Node* node = &root;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Node* next = child(*node, parts[i]);
    if (node->kind == NodeKind::list) {
      const std::optional<std::size_t> index = element(parts[i]);
      if (!index || *index >= node->children.size()) {
        issues.push_back(no_element(*node, parts[i], key));
        return;
      }
      next = &node->children[*index];
    }
    if (next == nullptr && node->kind == NodeKind::map) {
      Node nothing{.from_command_line = true, .unset = true};
      nothing.key = parts[i];
      node->children.push_back(std::move(nothing));
    }
    if (next == nullptr || next->unset) return;
    if (i + 1 == parts.size()) {
      node->children.erase(node->children.begin() + (next - node->children.data()));
      return;
    }
    node = next;
  }
}

std::vector<std::string> split(std::string_view path) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t dot = path.find('.');
    parts.emplace_back(path.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    path.remove_prefix(dot + 1);
  }
}

}  // namespace

Document::Document() : parts_(std::make_unique<Parts>()) { parts_->folder = fs::current_path(); }
Document::Document(Document&&) noexcept = default;
Document& Document::operator=(Document&&) noexcept = default;
Document::~Document() = default;

Document Document::load(const fs::path& path) {
  return parse(read_bounded_file(path), path.string(), path.has_parent_path() ? path.parent_path() : fs::path("."));
}

Document Document::parse(std::string_view text, std::string name, fs::path folder) {
  Document document;
  Parts& parts = *document.parts_;
  parts.name = std::move(name);
  // Canonical, so that a leading `..` of a path in the file can be taken off by name.
  std::error_code error;
  parts.folder = fs::weakly_canonical(fs::absolute(folder), error);
  if (error) parts.folder = fs::absolute(folder);
  if (static_cast<std::int64_t>(text.size()) > kMaxFileBytes) {
    refuse(parts.name, 0, fmt::format("is larger than {} MiB", kMaxFileBytes >> 20));
  }
  require_text(text, parts.name);
  parts.root = parse_yaml(std::string(text), parts.name, parts.issues);
  if (parts.root.kind == NodeKind::null) refuse(parts.name, 0, "is empty");
  if (parts.root.kind != NodeKind::map) refuse(parts.name, parts.root.line, "must be a map of keys, such as `train:`");
  return document;
}

void Document::apply(const std::vector<std::string>& assignments) {
  std::vector<Issue>& issues = parts_->issues;
  for (const std::string& assignment : assignments) {
    const std::size_t equals = assignment.find('=');
    const std::string key(trimmed(std::string_view(assignment).substr(0, equals)));
    const std::vector<std::string> parts = split(key);
    bool named = equals != std::string::npos && static_cast<int>(parts.size()) < kMaxNesting;
    for (const std::string& part : parts) named = named && !part.empty();
    if (!named) {
      issues.push_back(override_issue("", fmt::format("{} is not of the form key=value", in_quotes(assignment)),
                                      "for example train.steps=50"));
      continue;
    }
    Node value;
    if (!parse_value(key, std::string_view(assignment).substr(equals + 1), value, issues)) continue;
    if (value.kind == NodeKind::null) {
      remove_path(parts_->root, parts, key, issues);
      continue;
    }
    Node* node = &parts_->root;
    for (const std::string& part : parts) {
      node = step_into(*node, part, key, issues);
      if (node == nullptr) break;
    }
    if (node == nullptr) continue;
    value.key = std::move(node->key);
    mark_command_line(value);
    *node = std::move(value);
  }
}

const std::string& Document::name() const { return parts_->name; }

}  // namespace cleave::config
