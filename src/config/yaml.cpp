// YAML text to a Node tree through yaml-cpp's events, with bounds on nesting and size that hold while parsing.
//
// The only file that knows yaml-cpp. Its event interface is used rather than its Node, so that an alias bomb or a deep
// nest is refused before memory is taken, and so that a key given twice is seen.
#include <fmt/format.h>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <unordered_map>

#include "cleave/config/document.hpp"
#include "names.hpp"
#include "node.hpp"

namespace cleave::config {

namespace {

/// A file with more faulty keys than this is given up.
constexpr std::size_t kMaxIssues = 100;

/// What stops the parse: thrown through yaml-cpp, which is exception safe, and turned into an InputError.
struct Refused {
  int line;
  std::string message;
  std::string hint;
};

/// What a value counts against kMaxValues: long text counts as several, so that aliases cannot multiply it.
std::int64_t weight(const Node& node) { return 1 + static_cast<std::int64_t>(node.text.size()) / 64; }

struct Extent {
  std::int64_t values = 0;
  int height = 1;
};

Extent extent(const Node& node) {
  Extent sum{.values = weight(node)};
  for (const Node& below : node.children) {
    const Extent one = extent(below);
    sum.values += one.values;
    sum.height = std::max(sum.height, one.height + 1);
  }
  return sum;
}

class TreeBuilder final : public YAML::EventHandler {
 public:
  TreeBuilder(const std::string& name, std::vector<Issue>& issues) : name_(name), issues_(issues) {}

  Node root{};

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    place(Node{.kind = NodeKind::null, .line = line_of(mark)}, anchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_tag(mark, tag);
    Node node{.kind = NodeKind::scalar, .line = line_of(mark)};
    node.text = value;
    place(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, NodeKind::list);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, NodeKind::map);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) throw Refused{line_of(mark), "an alias refers to a value that contains it", ""};
    const Extent size = extent(found->second);
    if (static_cast<int>(open_.size()) + size.height > kMaxNesting) refuse_depth(line_of(mark));
    count(size.values, line_of(mark));
    place_counted(Node(found->second), 0);
  }

 private:
  /// A list or map whose end has not come yet. `key` waits for its value in a map.
  struct Open {
    Node node;
    YAML::anchor_t anchor = 0;
    bool has_key = false;
    bool dropped_value = false;
    std::string key{};
    int key_line = 0;
    std::unordered_map<std::string, int> lines{};  // of the keys so far
  };

  static int line_of(const YAML::Mark& mark) { return mark.line + 1; }

  static void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw Refused{line_of(mark), fmt::format("a YAML tag ({}) has no meaning here", in_quotes(tag)), ""};
    }
  }

  [[noreturn]] static void refuse_depth(int line) {
    throw Refused{line, fmt::format("lists and maps are nested more than {} deep", kMaxNesting), ""};
  }

  void count(std::int64_t values, int line) {
    values_ += values;
    if (values_ > kMaxValues) {
      throw Refused{line, fmt::format("more than {} values", kMaxValues), "an alias counts as often as it is used"};
    }
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, NodeKind kind) {
    refuse_tag(mark, tag);
    if (static_cast<int>(open_.size()) >= kMaxNesting) refuse_depth(line_of(mark));
    count(1, line_of(mark));
    open_.push_back(Open{.node = Node{.kind = kind, .line = line_of(mark)}, .anchor = anchor});
  }

  void close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    done.node.children.shrink_to_fit();
    place_counted(std::move(done.node), done.anchor);
  }

  void place(Node node, YAML::anchor_t anchor) {
    count(weight(node), node.line);
    place_counted(std::move(node), anchor);
  }

  void place_counted(Node node, YAML::anchor_t anchor) {
    if (anchor != 0) {
      count(extent(node).values, node.line);
      anchors_[anchor] = node;
    }
    if (open_.empty()) {
      root = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == NodeKind::list) {
      parent.node.children.push_back(std::move(node));
    } else if (!parent.has_key) {
      take_key(parent, node);
    } else {
      parent.has_key = false;
      if (parent.dropped_value) return;
      node.key = std::move(parent.key);
      node.line = parent.key_line;
      parent.node.children.push_back(std::move(node));
    }
  }

  void take_key(Open& map, const Node& node) {
    map.has_key = true;
    map.dropped_value = true;
    if (issues_.size() >= kMaxIssues) throw Refused{node.line, "the many faults above end the reading", ""};
    if (node.kind != NodeKind::scalar) {
      issues_.push_back({name_, node.line, path(), "a key must be a word", ""});
      return;
    }
    const auto [found, fresh] = map.lines.emplace(node.text, node.line);
    if (!fresh) {
      const std::string before = path();
      issues_.push_back({name_, node.line, before.empty() ? shown_key(node.text) : before + "." + shown_key(node.text),
                         "is given twice", fmt::format("first on line {}", found->second)});
      return;
    }
    map.dropped_value = false;
    map.key = node.text;
    map.key_line = node.line;
  }

  /// Dotted path of the innermost open list or map.
  [[nodiscard]] std::string path() const {
    std::string text;
    for (std::size_t i = 0; i + 1 < open_.size(); ++i) {
      if (!text.empty()) text += '.';
      text += open_[i].node.kind == NodeKind::list ? std::to_string(open_[i].node.children.size())
                                                   : shown_key(open_[i].key);
    }
    return text;
  }

  const std::string& name_;
  std::vector<Issue>& issues_;
  std::vector<Open> open_{};
  std::map<YAML::anchor_t, Node> anchors_{};
  std::int64_t values_ = 0;
};

/// Line `number` of the text, from 1 on; empty where there is none.
std::string_view line_of(std::string_view text, int number) {
  for (int i = 1; i < number; ++i) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find('\n'));
}

/// What may be wrong where a key was not expected: on this line, or on the one before it that says something.
std::string key_hint(std::string_view text, int line) {
  const std::string_view here = line_of(text, line);
  int before = line - 1;
  while (before > 0 && (trimmed(line_of(text, before)).empty() || trimmed(line_of(text, before)).front() == '#'))
    --before;
  const std::string_view above = line_of(text, before), said = trimmed(above), says = trimmed(here);
  const std::size_t colon = says.find(": ");
  const bool simple = colon != std::string_view::npos && says.find_first_of("{[\"'") == std::string_view::npos;
  if (simple && says.find(": ", colon + 2) != std::string_view::npos) return "put quotes around a value with ': '";
  if (before == 0 || says.empty()) return {};
  const bool items = said.front() == '-' && says.front() == '-';
  if (said.front() == '-' && !items) return {};
  if (said.find_first_of("[]{}\"'") != std::string_view::npos && !items) return {};
  if (!items && said.back() != ':' && said.find(": ") == std::string_view::npos)
    return fmt::format("line {} is no `key: value`; a blank follows the colon", before);
  if (above.find_first_not_of(' ') != here.find_first_not_of(' '))
    return fmt::format("{} begin in one column, those of lines {} and {} do not",
                       items ? "items of one list" : "keys of one map", before, line);
  return {};
}

/// Why a syntax error may have come about, from the line that it was met on and the library's message.
std::string syntax_hint(std::string_view text, int line, std::string_view message) {
  const std::string_view rest = line_of(text, line);
  const std::string_view indent = rest.substr(0, rest.find_first_not_of(" \t"));
  if (indent.find('\t') != std::string_view::npos) return "indent with spaces, not tabs";
  const std::size_t colon = rest.find(": ");
  const std::string_view value = colon == std::string_view::npos ? rest : rest.substr(colon + 2);
  const std::size_t first = value.find_first_not_of(" -[");
  if (first != std::string_view::npos && std::string_view("*&!%@`").find(value[first]) != std::string_view::npos) {
    return fmt::format("put quotes around text that opens with {}", value[first]);
  }
  if (message.find("sequence flow not found") != std::string_view::npos) return "a [ has no ]";
  if (message.find("map flow not found") != std::string_view::npos) return "a { has no }";
  return key_hint(text, line);
}

}  // namespace

Node parse_yaml(const std::string& text, const std::string& name, std::vector<Issue>& issues) {
  std::istringstream stream(text);
  TreeBuilder builder(name, issues);
  const auto refuse = [&](int line, const std::string& message, const std::string& hint) {
    issues.push_back({name, line, "", message, hint});
    throw InputError(issues);
  };
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    TreeBuilder rest(name, issues);
    if (parser.HandleNextDocument(rest)) refuse(0, "holds more than one YAML document", "leave out the lines ---");
  } catch (const Refused& refused) {
    refuse(refused.line, refused.message, refused.hint);
  } catch (const YAML::DeepRecursion& error) {
    refuse(error.mark.line + 1, fmt::format("lists and maps are nested more than {} deep", kMaxNesting), "");
  } catch (const YAML::Exception& error) {
    const int line = error.mark.is_null() ? 0 : error.mark.line + 1;
    refuse(line, "no YAML: " + error.msg, syntax_hint(text, line, error.msg));
  }
  return std::move(builder.root);
}

}  // namespace cleave::config
