// Token files of nanoGPT and llm.c, whole, cut short and damaged.
#include "cleave/data/tokens.hpp"

#include <gmock/gmock.h>

#include <cstring>

#include "temp_folder.hpp"

namespace cleave::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string llm_c_file(std::int32_t version, std::int32_t declared, const std::vector<std::uint16_t>& tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = 20240520;
  header[1] = version;
  header[2] = declared;
  return bytes_of(header) + bytes_of(tokens);
}

class LoadTokens : public TempFolder {
 protected:
  TokenArray load(std::string_view contents) {
    issues_.clear();
    return load_tokens({"t.bin", write("t.bin", contents), "input.yaml", 5}, "data.tokens", issues_);
  }
  std::string fault_of(std::string_view contents) {
    EXPECT_EQ(load(contents).size(), 0);
    EXPECT_THAT(issues_, SizeIs(1));
    return issues_.empty() ? "" : issues_[0].message;
  }
  std::vector<Issue> issues_;
};

TEST_F(LoadTokens, RawUint16) {
  EXPECT_THAT(load(bytes_of<std::uint16_t>({0, 50256, 65535})).to_vector(), ElementsAre(0, 50256, 65535));
  EXPECT_THAT(issues_, IsEmpty());
  EXPECT_EQ(load(bytes_of<std::uint16_t>({7})).max(), 7);
}

TEST_F(LoadTokens, HeaderAndUint16) {
  EXPECT_THAT(load(llm_c_file(1, 3, {9, 50256, 1})).to_vector(), ElementsAre(9, 50256, 1));
  EXPECT_THAT(issues_, IsEmpty());
}

TEST_F(LoadTokens, RawFileLongerThanAHeaderStaysRaw) {
  EXPECT_EQ(load(bytes_of(std::vector<std::uint16_t>(3000, 42))).size(), 3000);
}

TEST_F(LoadTokens, RefusesDamage) {
  EXPECT_THAT(fault_of(""), HasSubstr("t.bin: holds no tokens"));
  EXPECT_THAT(fault_of("abc"), HasSubstr("3 bytes, is not a whole number"));
  EXPECT_THAT(fault_of(llm_c_file(1, 4, {1, 2, 3})), HasSubstr("declares 4 tokens"));
  EXPECT_THAT(fault_of(llm_c_file(1, 2, {1, 2, 3})), HasSubstr("declares 2 tokens"));
  EXPECT_THAT(fault_of(llm_c_file(1, -1, {})), HasSubstr("declares -1 tokens"));
  EXPECT_THAT(fault_of(llm_c_file(1, 2147483647, {1})), HasSubstr("declares 2147483647"));
  EXPECT_THAT(fault_of(llm_c_file(1, 0, {})), HasSubstr("holds no tokens"));
  EXPECT_THAT(fault_of(llm_c_file(2, 1, {1})), HasSubstr("version 2"));
  const std::string whole = llm_c_file(1, 3, {1, 2, 3});
  for (std::size_t length = 12; length < whole.size(); length += length < 1000 ? 50 : 1)
    (void)fault_of(whole.substr(0, length));
}

TEST_F(LoadTokens, RefusesTokensOf32Bits) {
  std::vector<std::int32_t> file(300);
  file[0] = 20240801;
  EXPECT_THAT(fault_of(bytes_of(file)), HasSubstr("32-bit"));
}

TEST_F(LoadTokens, NamesTheEntry) {
  EXPECT_EQ(load_tokens({"x.bin", folder_ / "x.bin", "input.yaml", 5}, "data.tokens", issues_).size(), 0);
  EXPECT_EQ(load_tokens({".", folder_, "input.yaml", 6}, "data.tokens", issues_).size(), 0);
  ASSERT_THAT(issues_, SizeIs(2));
  EXPECT_EQ(to_string(issues_[0]), "input.yaml:5: data.tokens: x.bin: no such file");
  EXPECT_THAT(issues_[1].message, HasSubstr("not a file"));
}

TEST(TokenArray, WidthFollowsTheVocabulary) {
  TokenArray narrow(2, 65536), wide(2, 65537);
  narrow.set(1, 65535);
  wide.set(1, 65536);
  EXPECT_THAT(narrow.to_vector(), ElementsAre(0, 65535));
  EXPECT_THAT(wide.to_vector(), ElementsAre(0, 65536));
  EXPECT_EQ(wide[1], 65536);
  EXPECT_EQ(TokenArray().max(), -1);
  std::vector<std::int32_t> out(2);
  EXPECT_THROW(wide.copy(1, out), Bug);
  EXPECT_THROW(wide.copy(-1, out), Bug);
}

}  // namespace
}  // namespace cleave::data
