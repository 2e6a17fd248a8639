// Sections: reading of scalars, ranges, lists of scalars, words and paths.
#include <fmt/format.h>

#include <algorithm>

#include "cleave/config/quantity.hpp"
#include "cleave/config/reader.hpp"
#include "names.hpp"
#include "state.hpp"

namespace cleave::config {

namespace fs = std::filesystem;

namespace {

/// How a type is called, what its unit looks like, how its text is read.
template <class T>
struct Reading;
template <>
struct Reading<std::int64_t> {
  static constexpr const char *kType = "integer", *kUnit = "";
  static Parsed<std::int64_t> parse(std::string_view text, Unlimited) { return parse_integer(text); }
};
template <>
struct Reading<double> {
  static constexpr const char *kType = "number", *kUnit = "";
  static Parsed<double> parse(std::string_view text, Unlimited) { return parse_real(text); }
};
template <>
struct Reading<Bytes> {
  static constexpr const char *kType = "size", *kUnit = "512 MiB";
  static Parsed<Bytes> parse(std::string_view text, Unlimited) { return parse_bytes(text); }
};
template <>
struct Reading<BytesPerSecond> {
  static constexpr const char *kType = "rate", *kUnit = "40 Mbit/s";
  static Parsed<BytesPerSecond> parse(std::string_view text, Unlimited unlimited) {
    return parse_rate(text, unlimited);
  }
};
template <>
struct Reading<FlopsPerSecond> {
  static constexpr const char *kType = "compute rate", *kUnit = "1.5 TFLOP/s";
  static Parsed<FlopsPerSecond> parse(std::string_view text, Unlimited) { return parse_compute(text); }
};
template <>
struct Reading<Seconds> {
  static constexpr const char *kType = "time", *kUnit = "10 ms";
  static Parsed<Seconds> parse(std::string_view text, Unlimited) { return parse_seconds(text); }
};
template <>
struct Reading<Watts> {
  static constexpr const char *kType = "power", *kUnit = "5 W";
  static Parsed<Watts> parse(std::string_view text, Unlimited) { return parse_watts(text); }
};

template <class T>
std::string text_of(const T& value) {
  return to_text(value);
}
template <class T>
std::string text_of(const Range<T>& range) {
  if (range.low == range.high) return to_text(range.low);
  return fmt::format("[{}, {}]", to_text(range.low), to_text(range.high));
}
template <class T>
std::string text_of(const std::vector<T>& values) {
  std::vector<std::string> texts;
  for (const T& value : values) texts.push_back(to_text(value));
  return fmt::format("[{}]", joined(texts));
}

std::string list_of(const std::vector<std::string>& texts) {
  std::vector<std::string> scalars;
  for (const std::string& text : texts) scalars.push_back(yaml_scalar(text));
  return fmt::format("[{}]", joined(scalars));
}

template <class T, class D>
std::string bounds_text(const Bounded<T, D>& declared) {
  std::vector<std::string> parts;
  if (declared.min) parts.push_back(">= " + to_text(*declared.min));
  if (declared.above) parts.push_back("> " + to_text(*declared.above));
  if (declared.max) parts.push_back("<= " + to_text(*declared.max));
  if (declared.below) parts.push_back("< " + to_text(*declared.below));
  return joined(parts);
}

/// A value for the program to go on with after a fault.
template <class T, class D>
T harmless(const Bounded<T, D>& declared) {
  if (declared.min) return *declared.min;
  if (declared.max && *declared.max < T{}) return *declared.max;
  return T{};
}

}  // namespace

const std::string* Section::Place::scalar(std::string_view key, const Node& node) const {
  if (node.kind == NodeKind::scalar) return &node.text;
  if (node.kind == NodeKind::null) {
    state_->fault(&node, child_path(key), "has no value", "");
  } else {
    state_->fault(&node, child_path(key),
                  fmt::format("must be a single value, not {}", node.kind == NodeKind::list ? "a list" : "a map"), "");
  }
  return nullptr;
}

template <class T, class D>
std::optional<T> Section::Place::checked(std::string_view key, const Node& node, const Bounded<T, D>& declared) const {
  const std::string* text = scalar(key, node);
  if (text == nullptr) return std::nullopt;
  Parsed<T> parsed = Reading<T>::parse(*text, declared.unlimited ? Unlimited::allowed : Unlimited::refused);
  const auto refuse = [&](std::string message, std::string hint) {
    state_->fault(&node, child_path(key), std::move(message), std::move(hint));
    return std::nullopt;
  };
  if (!parsed.value) return refuse(std::move(parsed.message), std::move(parsed.hint));
  const T value = *parsed.value;
  const std::string shown = in_quotes(*text);
  if (declared.min && value < *declared.min) {
    return refuse(shown + " is too small", "at least " + to_text(*declared.min));
  }
  if (declared.above && value <= *declared.above) {
    return refuse(shown + " is too small", "more than " + to_text(*declared.above));
  }
  if (declared.max && value > *declared.max) {
    return refuse(shown + " is too large", "at most " + to_text(*declared.max));
  }
  if (declared.below && value >= *declared.below) {
    return refuse(shown + " is too large", "less than " + to_text(*declared.below));
  }
  return value;
}

template <class T, class D>
Node* Section::Place::declare_bounded(std::string_view key, const Bounded<T, D>& declared, const char* form) const {
  Node* node =
      declare(key,
              {.type = fmt::format(fmt::runtime(form), Reading<T>::kType) + (declared.unlimited ? " or unlimited" : ""),
               .unit = Reading<T>::kUnit,
               .default_value = declared.default_value ? text_of(*declared.default_value) : "",
               .range = bounds_text(declared),
               .help = declared.help},
              declared.default_value.has_value(), declared.optional);
  if (node == nullptr && declared.default_value) show(key, text_of(*declared.default_value), nullptr);
  return node;
}

template <class T>
T Section::Place::read_bounded(std::string_view key, const Bounded<T>& declared) const {
  const Node* node = declare_bounded(key, declared, "{}");
  const std::optional<T> value = node == nullptr ? std::nullopt : checked(key, *node, declared);
  if (!value) return declared.default_value.value_or(harmless(declared));
  show(key, yaml_scalar(node->text), node);
  return *value;
}

template <class T>
Range<T> Section::Place::read_range(std::string_view key, const Drawn<T>& declared) const {
  const Node* node = declare_bounded(key, declared, "{} or [low, high]");
  const Range<T> fallback = declared.default_value.value_or(Range<T>(harmless(declared)));
  if (node == nullptr) return fallback;
  if (node->kind != NodeKind::list) {
    const std::optional<T> value = checked(key, *node, declared);
    if (!value) return fallback;
    show(key, yaml_scalar(node->text), node);
    return *value;
  }
  if (node->children.size() != 2) {
    fault(key, fmt::format("a range has two ends, not {}", node->children.size()), "[low, high]");
    return fallback;
  }
  Drawn<T> ends = declared;
  ends.unlimited = false;  // nothing can be drawn up to infinity
  const std::optional<T> low = checked(fmt::format("{}.0", key), node->children[0], ends);
  const std::optional<T> high = checked(fmt::format("{}.1", key), node->children[1], ends);
  if (!low || !high) return fallback;
  if (*low > *high) {
    fault(key,
          fmt::format("the range runs from {} down to {}", in_quotes(node->children[0].text),
                      in_quotes(node->children[1].text)),
          "[low, high]");
    return fallback;
  }
  show(key, list_of({node->children[0].text, node->children[1].text}), node);
  return {*low, *high};
}

std::int64_t Section::integer(std::string_view key, const Bounded<std::int64_t>& declared) const {
  return place_->read_bounded(key, declared);
}
double Section::real(std::string_view key, const Bounded<double>& declared) const {
  return place_->read_bounded(key, declared);
}
Bytes Section::bytes(std::string_view key, const Bounded<Bytes>& declared) const {
  return place_->read_bounded(key, declared);
}
BytesPerSecond Section::rate(std::string_view key, const Bounded<BytesPerSecond>& declared) const {
  return place_->read_bounded(key, declared);
}
FlopsPerSecond Section::compute(std::string_view key, const Bounded<FlopsPerSecond>& declared) const {
  return place_->read_bounded(key, declared);
}
Seconds Section::seconds(std::string_view key, const Bounded<Seconds>& declared) const {
  return place_->read_bounded(key, declared);
}
Watts Section::watts(std::string_view key, const Bounded<Watts>& declared) const {
  return place_->read_bounded(key, declared);
}

Range<double> Section::real_range(std::string_view key, const Drawn<double>& declared) const {
  return place_->read_range(key, declared);
}
Range<Bytes> Section::bytes_range(std::string_view key, const Drawn<Bytes>& declared) const {
  return place_->read_range(key, declared);
}
Range<BytesPerSecond> Section::rate_range(std::string_view key, const Drawn<BytesPerSecond>& declared) const {
  return place_->read_range(key, declared);
}
Range<FlopsPerSecond> Section::compute_range(std::string_view key, const Drawn<FlopsPerSecond>& declared) const {
  return place_->read_range(key, declared);
}
Range<Seconds> Section::seconds_range(std::string_view key, const Drawn<Seconds>& declared) const {
  return place_->read_range(key, declared);
}
Range<Watts> Section::watts_range(std::string_view key, const Drawn<Watts>& declared) const {
  return place_->read_range(key, declared);
}

bool Section::boolean(std::string_view key, const Plain<bool>& declared) const {
  const std::size_t fallback = declared.default_value.value_or(false) ? 0 : 1;
  return choose(key, {"true", "false"}, declared.default_value ? std::optional(fallback) : std::nullopt,
                declared.optional, declared.help) == 0;
}

std::size_t Section::choose(std::string_view key, const std::vector<std::string>& words,
                            std::optional<std::size_t> fallback, bool optional, const std::string& help) const {
  const Node* node = place_->declare(key,
                                     {.type = fmt::format("{}", fmt::join(words, " | ")),
                                      .default_value = fallback ? words[*fallback] : "",
                                      .help = help},
                                     fallback.has_value(), optional);
  if (node == nullptr) {
    if (fallback) place_->show(key, yaml_scalar(words[*fallback]), nullptr);
    return fallback.value_or(0);
  }
  const std::string* text = place_->scalar(key, *node);
  if (text == nullptr) return fallback.value_or(0);
  const auto found = std::find(words.begin(), words.end(), *text);
  if (found == words.end()) {
    const std::string near = nearest(*text, words);
    fault(key, fmt::format("{} is none of {}", in_quotes(*text), joined(words)),
          near.empty() ? "" : fmt::format("did you mean {}?", near));
    return fallback.value_or(0);
  }
  place_->show(key, yaml_scalar(*text), node);
  return static_cast<std::size_t>(found - words.begin());
}

std::string Section::text(std::string_view key, const Plain<std::string>& declared) const {
  const std::string fallback = declared.default_value.value_or("");
  const Node* node = place_->declare(key, {.type = "text", .default_value = fallback, .help = declared.help},
                                     declared.default_value.has_value(), declared.optional);
  if (node == nullptr) {
    if (declared.default_value) place_->show(key, yaml_scalar(fallback), nullptr);
    return fallback;
  }
  const std::string* text = place_->scalar(key, *node);
  if (text == nullptr) return fallback;
  if (!is_utf8(*text)) {  // files are text as a whole; paths may be any bytes
    fault(key, "is not UTF-8 text");
    return fallback;
  }
  place_->show(key, yaml_scalar(*text), node);
  return *text;
}

std::optional<std::vector<const Node*>> Section::Place::scalars(std::string_view key, const Node& node) const {
  if (node.kind == NodeKind::scalar) return std::vector<const Node*>{&node};
  if (node.kind == NodeKind::map) {
    fault(key, "must be a list, not a map");
    return std::nullopt;
  }
  std::vector<const Node*> elements;
  bool sound = true;
  for (std::size_t i = 0; i < node.children.size(); ++i) {
    sound = scalar(fmt::format("{}.{}", key, i), node.children[i]) != nullptr && sound;
    elements.push_back(&node.children[i]);
  }
  return sound ? std::optional(std::move(elements)) : std::nullopt;
}

std::vector<std::string> Section::texts(std::string_view key, const Plain<std::vector<std::string>>& declared) const {
  const std::vector<std::string> fallback = declared.default_value.value_or(std::vector<std::string>{});
  const Node* node = place_->declare(
      key,
      {.type = "list of text", .default_value = declared.default_value ? list_of(fallback) : "", .help = declared.help},
      declared.default_value.has_value(), declared.optional);
  if (node == nullptr) {
    if (declared.default_value) place_->show(key, list_of(fallback), nullptr);
    return fallback;
  }
  const auto elements = place_->scalars(key, *node);
  if (!elements) return fallback;
  std::vector<std::string> values;
  for (const Node* element : *elements) values.push_back(element->text);
  place_->show(key, list_of(values), node);
  return values;
}

std::vector<std::int64_t> Section::integers(std::string_view key,
                                            const Bounded<std::int64_t, std::vector<std::int64_t>>& declared) const {
  const Node* node = place_->declare_bounded(key, declared, "list of {}");
  const std::vector<std::int64_t> fallback = declared.default_value.value_or(std::vector<std::int64_t>{});
  if (node == nullptr) return fallback;
  std::vector<std::int64_t> values;
  bool sound = true;
  const auto take = [&](std::string_view place, const Node& element) {
    const std::optional<std::int64_t> value = place_->checked(place, element, declared);
    sound = sound && value.has_value();
    values.push_back(value.value_or(0));
  };
  if (node->kind == NodeKind::list) {
    for (std::size_t i = 0; i < node->children.size(); ++i) take(fmt::format("{}.{}", key, i), node->children[i]);
  } else {
    take(key, *node);
  }
  if (!sound) return fallback;
  place_->show(key, text_of(values), node);
  return values;
}

// A leading `..` is taken off by name: the folder is canonical, so its parent's name is its parent. Wildcards and a
// `..` further in, which may follow a link, are left to whoever opens the path.
Path Section::Place::resolve(const std::string& written, const Node* node) const {
  const fs::path path(written);
  const bool in_file = node != nullptr && !node->from_command_line;
  Path result{.written = written};
  if (node != nullptr) {
    result.file = in_file ? state_->document.name : kCommandLine;
    result.line = node->line;
  }
  if (path.is_absolute()) {
    result.resolved = path;
    return result;
  }
  fs::path folder = in_file ? state_->document.folder : fs::current_path();
  auto part = path.begin();
  for (; part != path.end() && (*part == "." || *part == ".."); ++part) {
    if (*part == "..") folder = folder.parent_path();
  }
  for (; part != path.end(); ++part) folder /= *part;
  result.resolved = std::move(folder);
  return result;
}

Path Section::path(std::string_view key, const Plain<std::string>& declared) const {
  const Node* node = place_->declare(
      key, {.type = "path", .default_value = declared.default_value.value_or(""), .help = declared.help},
      declared.default_value.has_value(), declared.optional);
  const std::string* text = node == nullptr ? nullptr : place_->scalar(key, *node);
  if (text != nullptr && text->empty()) {
    fault(key, "is an empty path");
    text = nullptr;
  }
  if (text == nullptr && !declared.default_value) return {};
  const Path path =
      place_->resolve(text != nullptr ? *text : *declared.default_value, text != nullptr ? node : nullptr);
  place_->show(key, yaml_scalar(path.resolved.string()), node);
  return path;
}

std::vector<Path> Section::paths(std::string_view key, const Plain<std::vector<std::string>>& declared) const {
  const std::vector<std::string> fallback = declared.default_value.value_or(std::vector<std::string>{});
  const Node* node = place_->declare(key,
                                     {.type = "list of paths",
                                      .default_value = declared.default_value ? list_of(fallback) : "",
                                      .help = declared.help},
                                     declared.default_value.has_value(), declared.optional);
  std::vector<Path> values;
  const auto elements = node == nullptr ? std::nullopt : place_->scalars(key, *node);
  if (elements) {
    const bool may_be_empty = declared.default_value && fallback.empty();  // as an effective input says it then
    if (elements->empty() && !may_be_empty) fault(key, "is an empty list");
    for (const Node* element : *elements) {
      if (element->text.empty()) fault(key, "holds an empty path");
      values.push_back(place_->resolve(element->text, element));
    }
  } else {
    for (const std::string& written : fallback) values.push_back(place_->resolve(written, nullptr));
  }
  if (!elements && !declared.default_value) return values;
  std::vector<std::string> resolved;
  for (const Path& value : values) resolved.push_back(value.resolved.string());
  place_->show(key, list_of(resolved), node);
  return values;
}

WordOrPath Section::word_or_path(std::string_view key, const std::vector<std::string>& words,
                                 const Plain<std::string>& declared) const {
  const Node* node = place_->declare(key,
                                     {.type = fmt::format("{} | path", fmt::join(words, " | ")),
                                      .default_value = declared.default_value.value_or(""),
                                      .help = declared.help},
                                     declared.default_value.has_value(), declared.optional);
  const std::string* text = node == nullptr ? nullptr : place_->scalar(key, *node);
  if (text != nullptr && text->empty()) {
    fault(key, "is an empty path");
    text = nullptr;
  }
  if (text == nullptr && !declared.default_value) return {words.empty() ? "" : words.front(), {}};
  const std::string& written = text != nullptr ? *text : *declared.default_value;
  if (std::find(words.begin(), words.end(), written) != words.end()) {
    place_->show(key, yaml_scalar(written), node);
    return {written, {}};
  }
  const Path path = place_->resolve(written, text != nullptr ? node : nullptr);
  place_->show(key, yaml_scalar(path.resolved.string()), node);
  return {"", path};
}

}  // namespace cleave::config
