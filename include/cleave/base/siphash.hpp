// SipHash-2-4 with 128 bits of output: a keyed hash that nobody can compute without the key. The side channel tells its
// ranks from strangers by it (comm), and a second device says with it what it would have answered (docs/security.md);
// XXH3, which guards frames against damage, is no such hash.
//
// Source: Aumasson and Bernstein 2012, "SipHash: a fast short-input PRF"; the reference code's 128-bit variant.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cleave {

using SipKey = std::array<std::byte, 16>;
using SipTag = std::array<std::byte, 16>;

/// The hash of a message that comes in pieces. The tag does not depend on where the message was cut.
class SipHash {
 public:
  explicit SipHash(const SipKey& key);
  /// Appends a piece of the message.
  void take(std::span<const std::byte> piece);
  /// The tag of all pieces. No call may follow it.
  [[nodiscard]] SipTag tag();

 private:
  using Word = std::uint64_t;
  void rounds(int count);
  void take_word(Word word);
  [[nodiscard]] Word end();

  Word v0_, v1_, v2_, v3_;
  std::array<std::byte, 8> rest_{};  // of the last piece, less than a word
  std::size_t length_ = 0;           // of all pieces
};

/// The tag of a whole message.
[[nodiscard]] SipTag siphash(const SipKey& key, std::span<const std::byte> message);

/// a == b, in constant time: it does not tell an attacker where the tags differ.
[[nodiscard]] bool same_tag(const SipTag& a, const SipTag& b);

/// A random key from the operating system. Errors: EnvironmentError where it has none.
[[nodiscard]] SipKey secret_key();

}  // namespace cleave
