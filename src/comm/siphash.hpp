// SipHash-2-4 with 128 bits of output: a keyed hash that nobody can compute without the key. The side channel tells its
// ranks from strangers by it (liveness.hpp); XXH3, which guards frames against damage, is no such hash.
//
// Source: Aumasson and Bernstein 2012, "SipHash: a fast short-input PRF"; the reference code's 128-bit variant.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace cleave::comm {

using SipKey = std::array<std::byte, 16>;
using SipTag = std::array<std::byte, 16>;

[[nodiscard]] SipTag siphash(const SipKey& key, std::span<const std::byte> message);

/// Equal, in a time that does not tell where they differ.
[[nodiscard]] bool same_tag(const SipTag& a, const SipTag& b);

}  // namespace cleave::comm
