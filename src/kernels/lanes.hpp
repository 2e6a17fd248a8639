// Reductions whose order is written out, so that they round alike on every instruction set: element t goes to lane
// t mod 16, lanes are added in a fixed tree, and blocks of kBlock elements are added one after the other in double.
//
// Everything here is inlined into functions that have versions (versions.hpp). Vectors are never passed or returned by
// value, because their calling convention depends on the instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#include "versions.hpp"

/// Marks a lambda that is used as a term of lanes::sum.
#define CLEAVE_TERM __attribute__((always_inline))

/// Calls the best version of a loop that is a template over its lanes: CLEAVE_DISPATCH_LANES(sum_row)(x, n).
#define CLEAVE_DISPATCH_LANES(loop) dispatch<loop<lanes::Halves>, loop<lanes::Whole>>

namespace cleave::kernels::lanes {

inline constexpr std::int64_t kLanes = 16;
/// Elements whose fp32 lane sums are added before they are carried over into double: 32 additions a lane.
inline constexpr std::int64_t kBlock = 512;
/// What a kernel that only reads takes from memory at a time: rows or chunks that follow each other. A processor keeps
/// more lines under way from several streams than from one.
inline constexpr std::int64_t kStreams = 4;

/// Sixteen lanes as two vectors of eight. Of a vector that is wider than the processor's, GCC keeps the pieces in
/// memory and stores and loads them at every operation.
struct Halves {
  using Eight = float __attribute__((vector_size(32)));
  Eight low, high;

  CLEAVE_INLINE friend Halves operator+(const Halves& a, const Halves& b) { return {a.low + b.low, a.high + b.high}; }
  CLEAVE_INLINE friend Halves operator-(const Halves& a, const Halves& b) { return {a.low - b.low, a.high - b.high}; }
  CLEAVE_INLINE friend Halves operator*(const Halves& a, const Halves& b) { return {a.low * b.low, a.high * b.high}; }
  CLEAVE_INLINE friend Halves operator-(const Halves& a, float b) { return {a.low - b, a.high - b}; }
  CLEAVE_INLINE friend Halves operator*(const Halves& a, float b) { return {a.low * b, a.high * b}; }
  CLEAVE_INLINE void operator+=(const Halves& b) { low += b.low, high += b.high; }
  CLEAVE_INLINE void operator-=(float b) { low -= b, high -= b; }
  CLEAVE_INLINE void operator*=(const Halves& b) { low *= b.low, high *= b.high; }
};

/// Sixteen lanes as one vector, for AVX-512.
using Whole = float __attribute__((vector_size(64)));

CLEAVE_INLINE void load_all(Halves& to, const float* from) {
  std::memcpy(&to.low, from, sizeof to.low);
  std::memcpy(&to.high, from + kLanes / 2, sizeof to.high);
}
CLEAVE_INLINE void load_all(Whole& to, const float* from) { std::memcpy(&to, from, sizeof to); }

CLEAVE_INLINE void store_all(float* to, const Halves& from) {
  std::memcpy(to, &from.low, sizeof from.low);
  std::memcpy(to + kLanes / 2, &from.high, sizeof from.high);
}
CLEAVE_INLINE void store_all(float* to, const Whole& from) { std::memcpy(to, &from, sizeof from); }

/// Loads `count` <= 16 elements; the lanes beyond get `rest`.
template <class Floats>
CLEAVE_INLINE void load(Floats& to, const float* from, std::int64_t count = kLanes, float rest = 0) {
  if (count == kLanes) return load_all(to, from);
  float padded[kLanes];
  for (std::int64_t l = 0; l < kLanes; ++l) padded[l] = rest;
  for (std::int64_t l = 0; l < count; ++l) padded[l] = from[l];
  load_all(to, padded);
}

/// The same from memory that is read once, in order: asks for what comes 4 KiB later, so that more of it is under way
/// than the processor fetches by itself.
template <class Floats>
CLEAVE_INLINE void load_streamed(Floats& to, const float* from, std::int64_t count = kLanes) {
  __builtin_prefetch(from + 1024, 0, 2);
  load(to, from, count);
}

/// Asks for a line that is needed some thousand elements later, without waiting for it: a load would keep its place
/// among the processor's instructions until the line is there.
CLEAVE_INLINE void fetch(const float* line) { __builtin_prefetch(line, 0, 2); }

/// Stores the first `count` <= 16 lanes.
template <class Floats>
CLEAVE_INLINE void store(float* to, const Floats& from, std::int64_t count = kLanes) {
  if (count == kLanes) return store_all(to, from);
  float padded[kLanes];
  store_all(padded, from);
  for (std::int64_t l = 0; l < count; ++l) to[l] = padded[l];
}

/// Halves are added until one lane is left: lane l and l + 8, then l + 4, and so on.
CLEAVE_INLINE float add_up(const Halves& lanes) {
  using Four = float __attribute__((vector_size(16)));
  const Halves::Eight eight = lanes.low + lanes.high;
  const Four four =
      __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  return (four[0] + four[2]) + (four[1] + four[3]);
}
CLEAVE_INLINE float add_up(const Whole& lanes) {
  return add_up(Halves{__builtin_shufflevector(lanes, lanes, 0, 1, 2, 3, 4, 5, 6, 7),
                       __builtin_shufflevector(lanes, lanes, 8, 9, 10, 11, 12, 13, 14, 15)});
}

/// body(t, count) for elements t .. t+count-1 of n, a vector at a time.
template <class Body>
CLEAVE_INLINE void for_each(std::int64_t n, const Body& body) {
  std::int64_t t = 0;
  for (; t + kLanes <= n; t += kLanes) body(t, kLanes);
  if (t < n) body(t, n - t);
}

/// Sum of n terms. term(t, count, out) sets out to terms t .. t+count-1, and to 0 beyond.
template <class Floats, class Term>
CLEAVE_INLINE double sum(std::int64_t n, const Term& term) {
  double total = 0;
  for (std::int64_t block = 0; block < n; block += kBlock) {
    const std::int64_t end = n - block < kBlock ? n : block + kBlock;
    Floats lanes = {};
    Floats terms;
    std::int64_t t = block;
    for (; t + kLanes <= end; t += kLanes) {
      term(t, kLanes, terms);
      lanes += terms;
    }
    if (t < end) {
      term(t, end - t, terms);
      lanes += terms;
    }
    total += static_cast<double>(add_up(lanes));
  }
  return total;
}

template <class Floats>
CLEAVE_INLINE double sum(const float* x, std::int64_t n) {
  return sum<Floats>(
      n, [x](std::int64_t t, std::int64_t count, Floats& out) CLEAVE_TERM { load_streamed(out, x + t, count); });
}

/// Sum of x[t] * y[t].
template <class Floats>
CLEAVE_INLINE double dot(const float* x, const float* y, std::int64_t n) {
  return sum<Floats>(n, [x, y](std::int64_t t, std::int64_t count, Floats& out) CLEAVE_TERM {
    Floats other;
    load_streamed(out, x + t, count);
    load_streamed(other, y + t, count);
    out *= other;
  });
}

}  // namespace cleave::kernels::lanes
