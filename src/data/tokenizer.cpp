// The byte and the character tokenizer.
#include "cleave/data/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <unordered_map>

#include "utf8.hpp"

namespace cleave::data {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// The error for byte `at` of `text`, named by its file and its place there.
[[noreturn]] void refuse(const Text& text, std::int64_t at, std::string what, std::string hint) {
  Issue issue{.file = {}, .line = 0, .key = {}, .message = std::move(what), .hint = std::move(hint)};
  for (const TextPart& part : text.parts) {
    if (at >= part.begin && at < part.begin + part.size) {
      issue.file = part.path.string();
      at -= part.begin;
      break;
    }
  }
  issue.message += fmt::format(" at byte {}", at);
  throw InputError(std::vector<Issue>{std::move(issue)});
}

/// Calls visit(code point, first byte) for each character. A character never spans two files.
template <class Visit>
void for_each_character(const Text& text, Visit visit) {
  const auto run = [&](std::int64_t begin, std::int64_t size) {
    const std::string_view bytes =
        std::string_view(text.bytes).substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
    for (std::size_t at = 0; at < bytes.size();) {
      const auto character = decode_utf8(bytes, at);
      if (!character) {
        refuse(text, begin + static_cast<std::int64_t>(at), "not valid UTF-8",
               "a byte tokenizer takes any text: data.tokenizer: byte");
      }
      visit(character->value, begin + static_cast<std::int64_t>(at));
      at += static_cast<std::size_t>(character->length);
    }
  };
  if (text.parts.empty()) run(0, static_cast<std::int64_t>(text.bytes.size()));
  for (const TextPart& part : text.parts) run(part.begin, part.size);
}

class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::string_view kind() const override { return "byte"; }
  [[nodiscard]] std::int64_t vocab_size() const override { return 256; }

  [[nodiscard]] TokenArray encode(const Text& text) const override {
    TokenArray tokens(static_cast<std::int64_t>(text.bytes.size()), vocab_size());
    for (std::int64_t i = 0; const char byte : text.bytes) tokens.set(i++, static_cast<unsigned char>(byte));
    return tokens;
  }

  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const override {
    std::string text;
    for (const std::int32_t token : tokens) {
      if (token >= 0 && token < 256) {
        text += static_cast<char>(token);
      } else {
        text += kReplacement;
      }
    }
    return text;
  }

  [[nodiscard]] std::string to_text() const override { return "byte"; }
};

class CharTokenizer final : public Tokenizer {
 public:
  /// Requires: `characters` ascending and distinct.
  explicit CharTokenizer(std::vector<char32_t> characters) : characters_(std::move(characters)) {
    for (std::size_t i = 0; i < characters_.size(); ++i) ids_[characters_[i]] = static_cast<std::int32_t>(i);
  }

  [[nodiscard]] std::string_view kind() const override { return "char"; }
  [[nodiscard]] std::int64_t vocab_size() const override { return static_cast<std::int64_t>(characters_.size()); }

  [[nodiscard]] TokenArray encode(const Text& text) const override {
    std::int64_t count = 0;
    for_each_character(text, [&](char32_t, std::int64_t) { ++count; });
    TokenArray tokens(count, vocab_size());
    std::int64_t next = 0;
    for_each_character(text, [&](char32_t character, std::int64_t at) {
      const auto found = ids_.find(character);
      if (found == ids_.end()) {
        refuse(text, at, fmt::format("character U+{:04X} is not in the vocabulary", std::uint32_t{character}),
               fmt::format("the vocabulary has the {} characters of the training text", characters_.size()));
      }
      tokens.set(next++, found->second);
    });
    return tokens;
  }

  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const override {
    std::string text;
    for (const std::int32_t token : tokens) {
      if (token >= 0 && token < vocab_size()) {
        append_utf8(characters_[static_cast<std::size_t>(token)], text);
      } else {
        text += kReplacement;
      }
    }
    return text;
  }

  /// Runs of neighbours are joined: `char a 20-21 e9`.
  [[nodiscard]] std::string to_text() const override {
    std::string text = "char";
    for (std::size_t first = 0; first < characters_.size();) {
      std::size_t last = first;
      while (last + 1 < characters_.size() && characters_[last + 1] == characters_[last] + 1) ++last;
      fmt::format_to(std::back_inserter(text), " {:x}", std::uint32_t{characters_[first]});
      if (last > first) fmt::format_to(std::back_inserter(text), "-{:x}", std::uint32_t{characters_[last]});
      first = last + 1;
    }
    return text;
  }

 private:
  std::vector<char32_t> characters_;
  std::unordered_map<char32_t, std::int32_t> ids_;
};

/// Reads a hexadecimal number off the front of `text`.
std::optional<std::uint32_t> take_hex(std::string_view& text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

/// The characters that ` a 20-21 e9` stands for, or nothing where it is not of that form and ascending.
std::optional<std::vector<char32_t>> parse_characters(std::string_view text) {
  std::vector<char32_t> characters;
  while (!text.empty()) {
    if (text.front() != ' ') return std::nullopt;
    text.remove_prefix(1);
    const auto first = take_hex(text);
    auto last = first;
    if (first && text.starts_with('-')) {
      text.remove_prefix(1);
      last = take_hex(text);
    }
    if (!first || !last || *last < *first || !is_scalar_value(*last)) return std::nullopt;
    if (!characters.empty() && *first <= characters.back()) return std::nullopt;
    for (std::uint32_t value = *first; value <= *last; ++value) {
      if (!is_scalar_value(value)) return std::nullopt;
      characters.push_back(value);
    }
  }
  if (characters.empty()) return std::nullopt;
  return characters;
}

}  // namespace

TokenArray Tokenizer::encode(std::string_view text) const { return encode(Text{std::string(text), {}}); }

std::unique_ptr<const Tokenizer> make_byte_tokenizer() { return std::make_unique<const ByteTokenizer>(); }

std::unique_ptr<const Tokenizer> make_char_tokenizer(const Text& text) {
  std::vector<bool> seen(0x110000);
  for_each_character(text, [&](char32_t character, std::int64_t) { seen[character] = true; });
  std::vector<char32_t> characters;
  for (char32_t value = 0; value < 0x110000; ++value) {
    if (seen[value]) characters.push_back(value);
  }
  if (characters.empty()) throw InputError("no text to take characters from", "data.text is empty");
  return std::make_unique<const CharTokenizer>(std::move(characters));
}

std::unique_ptr<const Tokenizer> parse_tokenizer(std::string_view text) {
  if (text == "byte") return make_byte_tokenizer();
  if (text.starts_with("char")) {
    if (auto characters = parse_characters(text.substr(4))) {
      return std::make_unique<const CharTokenizer>(std::move(*characters));
    }
  }
  throw InputError(fmt::format("not a tokenizer: \"{}\"", text.substr(0, 40)),
                   "byte, or char with its characters in hex");
}

}  // namespace cleave::data
