// Reductions whose order is written out, so that they round alike on every instruction set: element t goes to lane
// t mod 16, lanes are added in a fixed tree, and blocks of kBlock elements are added one after the other in double.
//
// Everything here is inlined into functions marked CLEAVE_CLONES. Vectors are never passed by value, because their
// calling convention depends on the instruction set.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "clones.hpp"

namespace cleave::kernels::lanes {

inline constexpr std::int64_t kLanes = 16;
/// Elements whose fp32 lane sums are added before they are carried over into double: 32 additions a lane.
inline constexpr std::int64_t kBlock = 512;

using Floats = float __attribute__((vector_size(64)));
using Doubles = double __attribute__((vector_size(64)));  // half as many lanes

CLEAVE_INLINE void load(Floats& lanes, const float* from) { std::memcpy(&lanes, from, sizeof lanes); }
/// Loads count < 16 elements; the other lanes get `rest`.
CLEAVE_INLINE void load_some(Floats& lanes, const float* from, std::int64_t count, float rest) {
  float padded[kLanes];
  for (std::int64_t l = 0; l < kLanes; ++l) padded[l] = l < count ? from[l] : rest;
  load(lanes, padded);
}

CLEAVE_INLINE float add_up(const Floats& lanes) {
  float v[kLanes];
  std::memcpy(v, &lanes, sizeof v);
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2)
    for (std::int64_t l = 0; l < half; ++l) v[l] += v[l + half];
  return v[0];
}

/// Sum over t of term(t), where `term(lanes, t)` fills 16 lanes with terms t..t+15 and `term_some(lanes, t, count)` the
/// last, partial 16 (zero beyond count).
template <class Term, class TermSome>
CLEAVE_INLINE double sum_of(std::int64_t n, const Term& term, const TermSome& term_some) {
  double total = 0;
  for (std::int64_t block = 0; block < n; block += kBlock) {
    const std::int64_t end = n - block < kBlock ? n : block + kBlock;
    Floats lanes = {};
    Floats terms;
    std::int64_t t = block;
    for (; t + kLanes <= end; t += kLanes) {
      term(terms, t);
      lanes += terms;
    }
    if (t < end) {
      term_some(terms, t, end - t);
      lanes += terms;
    }
    total += static_cast<double>(add_up(lanes));
  }
  return total;
}

}  // namespace cleave::kernels::lanes
