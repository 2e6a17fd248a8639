// Two rounds for each word of the message, four to end each half of the tag.
#include "cleave/base/siphash.hpp"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "cleave/base/error.hpp"

namespace cleave {

static_assert(std::endian::native == std::endian::little, "words are read as they lie");

namespace {

std::uint64_t sip_word(const std::byte* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

}  // namespace

SipHash::SipHash(const SipKey& key) {
  const Word k0 = sip_word(key.data()), k1 = sip_word(key.data() + 8);
  v0_ = k0 ^ 0x736f6d6570736575;
  v1_ = k1 ^ 0x646f72616e646f6d ^ 0xee;
  v2_ = k0 ^ 0x6c7967656e657261;
  v3_ = k1 ^ 0x7465646279746573;
}

inline void SipHash::rounds(int count) {
  for (; count > 0; --count) {
    v0_ += v1_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v3_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ += v3_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ += v1_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v2_ = std::rotl(v2_, 32);
  }
}

inline void SipHash::take_word(Word word) {
  v3_ ^= word;
  rounds(2);
  v0_ ^= word;
}

SipHash::Word SipHash::end() {
  rounds(4);
  return v0_ ^ v1_ ^ v2_ ^ v3_;
}

void SipHash::take(std::span<const std::byte> piece) {
  const std::size_t kept = length_ % rest_.size();
  length_ += piece.size();
  if (kept > 0) {
    const std::size_t more = std::min(piece.size(), rest_.size() - kept);
    std::copy_n(piece.begin(), more, rest_.begin() + static_cast<std::ptrdiff_t>(kept));
    piece = piece.subspan(more);
    if (kept + more < rest_.size()) return;
    take_word(sip_word(rest_.data()));
  }
  for (; piece.size() >= rest_.size(); piece = piece.subspan(rest_.size())) take_word(sip_word(piece.data()));
  std::copy(piece.begin(), piece.end(), rest_.begin());
}

SipTag SipHash::tag() {
  std::fill(rest_.begin() + static_cast<std::ptrdiff_t>(length_ % rest_.size()), rest_.end(), std::byte{0});
  take_word(static_cast<Word>(length_) << 56 | sip_word(rest_.data()));
  v2_ ^= 0xee;
  const Word low = end();
  v1_ ^= 0xdd;
  const Word high = end();
  SipTag tag;
  std::memcpy(tag.data(), &low, sizeof low);
  std::memcpy(tag.data() + sizeof low, &high, sizeof high);
  return tag;
}

SipTag siphash(const SipKey& key, std::span<const std::byte> message) {
  SipHash hash(key);
  hash.take(message);
  return hash.tag();
}

bool same_tag(const SipTag& a, const SipTag& b) {
  std::byte differ{0};
  for (std::size_t i = 0; i < a.size(); ++i) differ |= a[i] ^ b[i];
  return differ == std::byte{0};
}

SipKey secret_key() {
  SipKey key;
  if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) {
    throw EnvironmentError("getrandom", "the operating system's random numbers", std::strerror(errno));
  }
  return key;
}

}  // namespace cleave
