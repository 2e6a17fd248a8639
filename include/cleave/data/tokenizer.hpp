// Tokenizers: text to token ids and back.
//
// Used by the app to build a Corpus, and by `generate` to read a prompt and print a sample. A tokenizer travels in
// checkpoints as a line of ASCII (to_text / parse_tokenizer), so that a checkpoint can be used without the text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cleave/data/text.hpp"
#include "cleave/data/tokens.hpp"

namespace cleave::data {

/// See the file comment. Constant once constructed.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// The name that `data.tokenizer` has for it.
  [[nodiscard]] virtual std::string_view kind() const = 0;

  /// Number of distinct tokens; ids are [0, vocab_size).
  [[nodiscard]] virtual std::int64_t vocab_size() const = 0;

  /// Token ids of `text`.
  /// Errors: InputError naming file and byte for what is not in the vocabulary or not UTF-8.
  [[nodiscard]] virtual TokenArray encode(const Text& text) const = 0;
  [[nodiscard]] TokenArray encode(std::string_view text) const;

  /// The text of `tokens`; an id outside the vocabulary (of a model with a larger one) becomes U+FFFD.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> tokens) const = 0;

  /// Everything needed to make this tokenizer again, as one line of ASCII.
  [[nodiscard]] virtual std::string to_text() const = 0;
};

/// Token = byte. Takes any text.
[[nodiscard]] std::unique_ptr<const Tokenizer> make_byte_tokenizer();

/// Token = index of a character (UTF-8 code point) among the distinct characters of `text`, in code point order.
/// Errors: InputError naming file and byte where `text` is not UTF-8, or where it is empty.
[[nodiscard]] std::unique_ptr<const Tokenizer> make_char_tokenizer(const Text& text);

/// The tokenizer that to_text() described: `byte`, or `char` and code points in hex, as in `char a 20-21 e9`.
/// Errors: InputError for any other text.
[[nodiscard]] std::unique_ptr<const Tokenizer> parse_tokenizer(std::string_view text);

}  // namespace cleave::data
