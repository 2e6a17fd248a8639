// Byte and character tokenizers: round trips, refusals by file and byte, and their text in checkpoints.
#include "cleave/data/tokenizer.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>

#include "cleave/base/random.hpp"

namespace cleave::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Text text_of(std::string bytes) { return Text{std::move(bytes), {}}; }

/// The issue that `run` throws.
Issue issue_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const InputError& error) { return error.issues().at(0); }
  ADD_FAILURE() << "no InputError";
  return {};
}

TEST(ByteTokenizer, TakesAnyBytes) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const auto tokenizer = make_byte_tokenizer();
  const auto tokens = tokenizer->encode(all).to_vector();
  for (int i = 0; i < 256; ++i) EXPECT_EQ(tokens[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(tokenizer->decode(tokens), all);
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(parse_tokenizer(tokenizer->to_text())->kind(), "byte");
}

TEST(ByteTokenizer, IdsPastTheVocabularyDecodeToTheReplacementCharacter) {
  EXPECT_EQ(make_byte_tokenizer()->decode(std::vector<std::int32_t>{65, 256, -1}), "A\uFFFD\uFFFD");
}

TEST(CharTokenizer, NumbersCharactersInCodePointOrder) {
  const Text text = text_of("héllo €\n😀");
  const auto tokenizer = make_char_tokenizer(text);
  EXPECT_EQ(tokenizer->vocab_size(), 8);  // \n, space, h, l, o, é, €, 😀
  EXPECT_THAT(tokenizer->encode(text).to_vector(), ElementsAre(2, 5, 3, 3, 4, 1, 6, 0, 7));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text).to_vector()), text.bytes);
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{2, 8, -1}), "h\uFFFD\uFFFD");
}

TEST(CharTokenizer, SurvivesAsText) {
  const Text text = text_of("abcxyz ~é😀\n");
  const auto tokenizer = make_char_tokenizer(text);
  EXPECT_EQ(tokenizer->to_text(), "char a 20 61-63 78-7a 7e e9 1f600");
  const auto again = parse_tokenizer(tokenizer->to_text());
  EXPECT_EQ(again->kind(), "char");
  EXPECT_EQ(again->to_text(), tokenizer->to_text());
  EXPECT_EQ(again->encode(text).to_vector(), tokenizer->encode(text).to_vector());
}

TEST(CharTokenizer, RoundTripOfRandomCharacters) {
  const Random random(1, Purpose::test);
  std::string bytes;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const auto value = static_cast<unsigned>(random.below(i, 0x110000));
    if (value >= 0xD800 && value < 0xE000) continue;
    if (value < 0x80) bytes += static_cast<char>(value);
    if (value >= 0x10000) bytes += static_cast<char>(0xF0 | (value >> 18));
    if (value >= 0x10000) bytes += static_cast<char>(0x80 | ((value >> 12) & 0x3F));
    if (value >= 0x800 && value < 0x10000) bytes += static_cast<char>(0xE0 | (value >> 12));
    if (value >= 0x80 && value < 0x800) bytes += static_cast<char>(0xC0 | (value >> 6));
    if (value >= 0x800) bytes += static_cast<char>(0x80 | ((value >> 6) & 0x3F));
    if (value >= 0x80) bytes += static_cast<char>(0x80 | (value & 0x3F));
  }
  const auto tokenizer = make_char_tokenizer(text_of(bytes));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(bytes).to_vector()), bytes);
  EXPECT_EQ(parse_tokenizer(tokenizer->to_text())->decode(tokenizer->encode(bytes).to_vector()), bytes);
}

TEST(CharTokenizer, NamesFileAndByteOfInvalidUtf8) {
  const Text text{"good|bad\xFF|", {{"a.txt", 0, 5}, {"b.txt", 5, 5}}};
  const Issue issue = issue_of([&] { (void)make_char_tokenizer(text); });
  EXPECT_EQ(issue.file, "b.txt");
  EXPECT_EQ(issue.message, "not valid UTF-8 at byte 3");
  EXPECT_THAT(issue.hint, HasSubstr("data.tokenizer: byte"));
}

TEST(CharTokenizer, RefusesEveryFormOfInvalidUtf8) {
  for (const std::string bad : {"\x80", "\xC3", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE2\x82", "\xED\xA0\x80",
                                "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFE", "\xC3\x28"}) {
    const Issue issue = issue_of([&] { (void)make_char_tokenizer(text_of("ab" + bad)); });
    EXPECT_EQ(issue.message, "not valid UTF-8 at byte 2");
  }
}

TEST(CharTokenizer, CharacterDoesNotSpanFiles) {
  const Text text{"\xC3\xA9", {{"a.txt", 0, 1}, {"b.txt", 1, 1}}};
  EXPECT_EQ(issue_of([&] { (void)make_char_tokenizer(text); }).file, "a.txt");
}

TEST(CharTokenizer, RefusesUnknownCharacters) {
  const auto tokenizer = make_char_tokenizer(text_of("abc"));
  const Issue issue = issue_of([&] { (void)tokenizer->encode("ab€"); });
  EXPECT_EQ(issue.message, "character U+20AC is not in the vocabulary at byte 2");
}

TEST(ParseTokenizer, RefusesWhatItDidNotWrite) {
  for (const char* bad : {"", "bytes", "char", "char ", "char 61 61", "char 62-61", "char 110000", "char d7ff-e000",
                          "char 61,62", "char 61-", "char zz", "char 61  62", "char -61", "char 123456789"}) {
    EXPECT_THROW((void)parse_tokenizer(bad), InputError) << bad;
  }
}

TEST(CharTokenizer, WideVocabulariesKeepTheirIds) {
  // More than 65536 characters: ids no longer fit two bytes.
  const auto tokenizer = parse_tokenizer("char 0-d7ff e000-1ffff");
  EXPECT_EQ(tokenizer->vocab_size(), 0x20000 - 0x800);
  EXPECT_THAT(tokenizer->encode("\U0001FFFF").to_vector(), ElementsAre(0x1FFFF - 0x800));
}

}  // namespace
}  // namespace cleave::data
