// Two rounds for each word of the message, four to end each half of the tag.
#include "siphash.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

namespace cleave::comm {

namespace {

using Word = std::uint64_t;
static_assert(std::endian::native == std::endian::little, "words are read as they lie");

struct State {
  Word v0, v1, v2, v3;

  void rounds(int count) {
    for (; count > 0; --count) {
      v0 += v1;
      v1 = std::rotl(v1, 13) ^ v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
  }
  void take(Word word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }
  [[nodiscard]] Word end() {
    rounds(4);
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

Word word_at(const std::byte* bytes, std::size_t count) {
  Word word = 0;
  if (count > 0) std::memcpy(&word, bytes, count);  // an empty span may hold a null pointer
  return word;
}

}  // namespace

SipTag siphash(const SipKey& key, std::span<const std::byte> message) {
  const Word k0 = word_at(key.data(), 8), k1 = word_at(key.data() + 8, 8);
  State s{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d ^ 0xee, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573};
  const Word length = static_cast<Word>(message.size()) << 56;
  for (; message.size() >= 8; message = message.subspan(8)) s.take(word_at(message.data(), 8));
  s.take(length | word_at(message.data(), message.size()));
  s.v2 ^= 0xee;
  const Word low = s.end();
  s.v1 ^= 0xdd;
  const Word high = s.end();
  SipTag tag;
  std::memcpy(tag.data(), &low, sizeof low);
  std::memcpy(tag.data() + sizeof low, &high, sizeof high);
  return tag;
}

bool same_tag(const SipTag& a, const SipTag& b) {
  std::byte differ{0};
  for (std::size_t i = 0; i < a.size(); ++i) differ |= a[i] ^ b[i];
  return differ == std::byte{0};
}

}  // namespace cleave::comm
