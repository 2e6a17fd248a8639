// SipHash-2-4-128 against the vectors that its authors published with the reference code (key 00 01 .. 0f, messages
// 00 01 02 ..).
#include "cleave/base/siphash.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

namespace cleave {
namespace {

std::string hashed(std::size_t length) {
  SipKey key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  std::vector<std::byte> message(length);
  for (std::size_t i = 0; i < length; ++i) message[i] = static_cast<std::byte>(i);
  std::string text;
  for (const std::byte byte : siphash(key, message)) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned>(byte));
    text += digits.data();
  }
  return text;
}

TEST(SipHash, ThePublishedVectors) {
  EXPECT_EQ(hashed(0), "a3817f04ba25a8e66df67214c7550293");
  EXPECT_EQ(hashed(1), "da87c1d86b99af44347659119b22fc45");
  EXPECT_EQ(hashed(15), "5493e99933b0a8117e08ec0f97cfc3d9");
  EXPECT_EQ(hashed(63), "5150d1772f50834a503e069a973fbd7c");
}

TEST(SipHash, AMessageInPiecesHasTheTagOfTheWhole) {
  const SipKey key = secret_key();
  std::vector<std::byte> message(61);
  for (std::size_t i = 0; i < message.size(); ++i) message[i] = static_cast<std::byte>(3 * i + 1);
  const std::span<const std::byte> all(message);
  for (std::size_t first = 0; first <= message.size(); ++first) {
    for (std::size_t second = first; second <= message.size(); second += 5) {
      SipHash hash(key);
      hash.take(all.first(first));
      hash.take(all.subspan(first, second - first));
      hash.take(all.subspan(second));
      ASSERT_EQ(hash.tag(), siphash(key, all)) << first << ", " << second;
    }
  }
}

TEST(SipHash, SecretKeysDiffer) { EXPECT_NE(secret_key(), secret_key()); }

TEST(SipHash, TagsAreComparedWhole) {
  const SipTag tag = siphash({}, {});
  EXPECT_TRUE(same_tag(tag, tag));
  for (std::size_t i = 0; i < tag.size(); ++i) {
    SipTag other = tag;
    other[i] ^= std::byte{0x80};
    EXPECT_FALSE(same_tag(tag, other)) << i;
  }
}

}  // namespace
}  // namespace cleave
