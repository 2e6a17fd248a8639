// The tree that a Document holds and a Reader walks: YAML without yaml-cpp, each value with its place of origin.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/config/document.hpp"

namespace cleave::config {

enum class NodeKind : unsigned char { null, scalar, list, map };

struct Node {
  NodeKind kind = NodeKind::null;
  bool from_command_line = false;
  bool read = false;   ///< some declaration asked for it
  bool unset = false;  ///< nothing stands here: the command line took back what was not there; only its name counts
  int line = 0;        ///< of the key, or of the list element; 0 on the command line
  std::string key{};   ///< in a map
  std::string text{};
  std::vector<Node> children{};
};

/// The child of a map by name, null where there is none (or `map` is no map).
inline Node* child(Node& map, std::string_view key) {
  if (map.kind != NodeKind::map) return nullptr;
  for (Node& node : map.children) {
    if (node.key == key) return &node;
  }
  return nullptr;
}

struct Document::Parts {
  std::string name{};              ///< as the user wrote it
  std::filesystem::path folder{};  ///< absolute; what relative paths in the file are relative to
  Node root{.kind = NodeKind::map};
  std::vector<Issue> issues{};  ///< faults that leave the rest readable
};

/// Parses one YAML document. Duplicate keys and the like go to `issues`, the first of two equal keys holds.
/// Errors: InputError where the text cannot be taken as YAML at all.
[[nodiscard]] Node parse_yaml(const std::string& text, const std::string& name, std::vector<Issue>& issues);

}  // namespace cleave::config
