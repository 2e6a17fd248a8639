// Sections: maps, lists of maps and alternatives; how a key is declared, found and faulted.
#include <fmt/format.h>

#include <algorithm>

#include "cleave/config/reader.hpp"
#include "names.hpp"
#include "state.hpp"

namespace cleave::config {

namespace {

const char* kind_name(NodeKind kind) {
  switch (kind) {
    case NodeKind::null: return "nothing";
    case NodeKind::scalar: return "a single value";
    case NodeKind::list: return "a list";
    case NodeKind::map: return "a map of keys";
  }
  return "";
}

}  // namespace

Section::Section(Place place) : place_(std::make_shared<Place>(std::move(place))) {}

std::string Section::Place::child_path(std::string_view key) const {
  if (key.empty()) return path_;
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

Node* Section::Place::find(std::string_view key) const {
  Node* node = node_ == nullptr ? nullptr : child(*node_, key);
  if (node == nullptr || !node->unset) return node;
  node->read = true;  // a key that is known
  return nullptr;
}

bool Section::given(std::string_view key) const { return place_->find(key) != nullptr; }

bool Section::sound(std::string_view key) const { return !place_->state_->faulted.contains(place_->child_path(key)); }

void Section::fault(std::string_view key, std::string message, std::string hint) const {
  place_->fault(key, std::move(message), std::move(hint));
}

void Section::Place::fault(std::string_view key, std::string message, std::string hint) const {
  const Node* node = key.empty() ? nullptr : find(key);
  state_->fault(node != nullptr ? node : node_, child_path(key), std::move(message), std::move(hint));
}

// Records the declaration and yields the node, marked as read; notes the fault of a required key that is missing or of
// a key without value, and yields null for both.
Node* Section::Place::declare(std::string_view key, Declaration declaration, bool has_default, bool optional) const {
  Schema& schema = schema_->at(key);
  if (!schema.declared) {
    declaration.required = !has_default && !optional;
    schema.declaration = std::move(declaration);
    schema.declared = true;
  }
  Node* node = find(key);
  if (node == nullptr) {
    if (!has_default && !optional && !muted_) fault(key, "is missing", schema.declaration.help);
    return nullptr;
  }
  node->read = true;
  if (node->kind != NodeKind::null) return node;
  fault(key, "has no value", has_default || optional ? "leave the key out to have its default" : "");
  return nullptr;
}

void Section::Place::show(std::string_view key, std::string text, const Node* node) const {
  if (shown_ == nullptr) return;
  Shown& line = shown_->add(Shown::Form::value, key);
  line.text = std::move(text);
  const auto overridden = [](const Node& below) { return below.from_command_line; };
  if (node != nullptr) {
    const bool command_line =
        node->from_command_line || std::any_of(node->children.begin(), node->children.end(), overridden);
    line.origin = command_line ? Origin::command_line : Origin::file;
  }
}

Section Section::section(std::string_view key, std::string help) const {
  Schema& schema = place_->schema_->at(key);
  if (!schema.declared) schema.declaration = {.type = "section", .help = std::move(help)};
  schema.declared = true;
  Shown* shown = place_->shown_ == nullptr ? nullptr : &place_->shown_->add(Shown::Form::map, key);
  Node* node = place_->find(key);
  if (node != nullptr) node->read = true;
  bool muted = place_->muted_;
  if (node != nullptr && node->kind != NodeKind::map) {
    if (node->kind != NodeKind::null) {
      fault(key, fmt::format("must be a map of keys, not {}", kind_name(node->kind)));
      muted = true;
    }
    node = nullptr;
  }
  if (node != nullptr) place_->state_->maps.push_back({node, &schema, place_->child_path(key)});
  return Section({place_->state_, node, &schema, shown, place_->child_path(key), muted});
}

void Section::each(std::string_view key, const Listed& declared,
                   const std::function<void(const Section&)>& read) const {
  Node* node = place_->declare(key, {.type = "list", .help = declared.help}, declared.min_count == 0, false);
  Schema& schema = place_->schema_->at(key).at("[]");
  if (place_->state_->reference) {
    read(Section({place_->state_, nullptr, &schema, nullptr, place_->child_path(key) + "[]", true}));
    return;
  }
  if (node != nullptr && node->kind != NodeKind::list) {
    fault(key, fmt::format("must be a list, not {}", kind_name(node->kind)), "each element opens with a dash");
    node = nullptr;
  } else if (node != nullptr) {
    const auto count = static_cast<std::int64_t>(node->children.size());
    if (count < declared.min_count) {
      fault(key, fmt::format("has {} elements", count), fmt::format("at least {}", declared.min_count));
    }
    if (count > declared.max_count) {
      fault(key, fmt::format("has {} elements", count), fmt::format("at most {}", declared.max_count));
      return;
    }
  }
  if (node == nullptr || node->children.empty()) {
    place_->show(key, "[]", node);
    return;
  }
  Shown* list = place_->shown_ == nullptr ? nullptr : &place_->shown_->add(Shown::Form::list, key);
  for (std::size_t i = 0; i < node->children.size(); ++i) {
    Node& element = node->children[i];
    const std::string path = fmt::format("{}.{}", place_->child_path(key), i);
    if (element.kind != NodeKind::map) {
      place_->state_->fault(&element, path, fmt::format("must be a map of keys, not {}", kind_name(element.kind)), "");
      continue;
    }
    place_->state_->maps.push_back({&element, &schema, path});
    Shown* shown = list == nullptr ? nullptr : &list->add(Shown::Form::map, "");
    read(Section({place_->state_, &element, &schema, shown, path, place_->muted_}));
  }
}

WordOrSection Section::word_or_section(std::string_view key, const std::vector<std::string>& words,
                                       const Plain<std::string>& declared) const {
  Node* node = place_->declare(key,
                               {.type = fmt::format("{} | {{keys}}", fmt::join(words, " | ")),
                                .default_value = declared.default_value.value_or(""),
                                .help = declared.help},
                               declared.default_value.has_value(), declared.optional);
  Schema& schema = place_->schema_->at(key);
  const std::string path = place_->child_path(key);
  if (place_->state_->reference) return {"", Section({place_->state_, nullptr, &schema, nullptr, path, true})};
  const Section none({place_->state_, nullptr, &schema, nullptr, path, true});
  const std::string fallback = declared.default_value.value_or(words.empty() ? "" : words.front());
  if (node == nullptr) {
    if (declared.default_value) place_->show(key, yaml_scalar(fallback), nullptr);
    return {fallback, none};
  }
  if (node->kind == NodeKind::map) {
    place_->state_->maps.push_back({node, &schema, path});
    Shown* shown = place_->shown_ == nullptr ? nullptr : &place_->shown_->add(Shown::Form::map, key);
    return {"", Section({place_->state_, node, &schema, shown, path, place_->muted_})};
  }
  if (node->kind == NodeKind::scalar && std::find(words.begin(), words.end(), node->text) != words.end()) {
    place_->show(key, yaml_scalar(node->text), node);
    return {node->text, none};
  }
  const std::string near = nearest(node->text, words);
  fault(key,
        fmt::format("{} is neither {} nor a map of keys",
                    node->kind == NodeKind::scalar ? in_quotes(node->text) : kind_name(node->kind), joined(words)),
        near.empty() ? "" : fmt::format("did you mean {}?", near));
  return {fallback, none};
}

void Section::one_of(const std::vector<Branch>& branches) const {
  if (place_->state_->reference) {
    for (const Branch& branch : branches) branch.read(*this);
    return;
  }
  const Branch* chosen = nullptr;
  std::vector<std::string> keys;
  for (const Branch& branch : branches) {
    place_->schema_->alternatives.insert(branch.own_keys.begin(), branch.own_keys.end());
    if (!branch.key.empty()) place_->schema_->alternatives.insert(branch.key);
    if (!branch.key.empty()) keys.push_back(branch.key);
    if (chosen == nullptr && !branch.key.empty() && given(branch.key)) chosen = &branch;
  }
  for (const Branch& branch : branches) {
    if (chosen == nullptr && branch.key.empty()) chosen = &branch;
  }
  if (chosen == nullptr) {
    if (!place_->muted_) fault("", fmt::format("needs one of {}", joined(keys, " or ")));
    for (const Branch& branch : branches) {
      for (const std::string& key : branch.own_keys) {
        if (Node* node = place_->find(key)) node->read = true;  // it may well belong to the one that is missing
      }
    }
    return;
  }
  const auto belongs = [&](const std::string& key) {
    return key == chosen->key ||
           std::find(chosen->own_keys.begin(), chosen->own_keys.end(), key) != chosen->own_keys.end();
  };
  for (const Branch& branch : branches) {
    std::vector<std::string> foreign = branch.own_keys;
    if (!branch.key.empty()) foreign.insert(foreign.begin(), branch.key);
    for (const std::string& key : foreign) {
      Node* node = place_->find(key);
      if (&branch == chosen || node == nullptr || node->read || belongs(key)) continue;
      node->read = true;
      if (!chosen->key.empty()) {
        fault(key, fmt::format("cannot stand beside {}", chosen->key), "leave one of them out");
      } else {
        fault(key, fmt::format("has a meaning only beside {}", branch.key));
      }
    }
  }
  chosen->read(*this);
}

}  // namespace cleave::config
