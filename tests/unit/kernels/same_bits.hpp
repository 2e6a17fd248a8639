// Shared by the tests of server kernels: reproducible noise, and the check that 1, 2 and 3 threads give the same bits.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "cleave/base/random.hpp"
#include "cleave/kernels/parallel.hpp"

namespace cleave::kernels::testing_tools {

using Floats = std::vector<float>;

inline Floats noise(std::int64_t n, std::uint32_t stream, double size = 1, double offset = 0) {
  const Random random(11, Purpose::test, stream);
  Floats x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(offset + size * random.normal(i));
  return x;
}

inline bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// body(parallel) returns everything that a kernel wrote; it must be the same for any number of threads.
template <class Body>
void expect_same_bits_for_any_threads(const Body& body) {
  Parallel one(1), two(2), three(3);
  const Floats expected = body(one);
  EXPECT_TRUE(same_bits(body(two), expected)) << "2 threads";
  EXPECT_TRUE(same_bits(body(three), expected)) << "3 threads";
}

inline void append(Floats& to, const Floats& from) { to.insert(to.end(), from.begin(), from.end()); }

}  // namespace cleave::kernels::testing_tools
