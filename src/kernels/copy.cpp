// Non-temporal stores, a line at a time; what is not on a line's boundary, and short rows, go through memcpy.
#include "cleave/kernels/copy.hpp"

#include <cstdint>
#include <cstring>

#include "avx512.hpp"
#include "clones.hpp"
#include "processor.hpp"

namespace cleave::kernels {

namespace {

void copy_as_usual(const float* from, std::int64_t n, float* to) {
  std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
}

/// Sets the top bit of `beyond` where one of n numbers is infinite or NaN, that is, has every bit of the exponent.
CLEAVE_INLINE void copy_and_look(const float* from, std::int64_t n, float* to, std::uint32_t& beyond) {
  constexpr std::uint32_t kMagnitude = 0x7fff'ffffU, kLargest = 0x7f7f'ffffU;
  for (std::int64_t j = 0; j < n; ++j) {
    std::uint32_t bits = 0;
    __builtin_memcpy(&bits, from + j, sizeof bits);
    beyond |= kLargest - (bits & kMagnitude);
    __builtin_memcpy(to + j, &bits, sizeof bits);
  }
}
CLEAVE_CLONES bool copy_finite(const float* from, std::int64_t n, float* to) {
  std::uint32_t beyond = 0;
  copy_and_look(from, n, to, beyond);
  return (beyond >> 31) == 0;
}
CLEAVE_CLONES bool copy_finite_pieces(const float* from, std::int64_t apart, std::int64_t pieces, std::int64_t n,
                                      float* to) {
  std::uint32_t beyond = 0;
  for (std::int64_t p = 0; p < pieces; ++p) copy_and_look(from + p * apart, n, to + p * n, beyond);
  return (beyond >> 31) == 0;
}
CLEAVE_CLONES void copy_pieces(const float* from, std::int64_t pieces, std::int64_t n, float* to, std::int64_t apart) {
  for (std::int64_t p = 0; p < pieces; ++p)
    for (std::int64_t j = 0; j < n; ++j) to[p * apart + j] = from[p * n + j];
}

enum class Access { read = 0, write = 1 };

/// Asks for a row some rows later: short rows far apart are no stream that the processor recognises. Longer ones are.
template <Access kAccess, std::int64_t kRowsAhead = 32, std::int64_t kLongest = 256>
void fetch_row_ahead(const float* row, std::int64_t cols, std::int64_t ld) {
  constexpr std::int64_t kLineFloats = 16;
  if (cols > kLongest) return;
  for (std::int64_t j = 0; j < cols; j += kLineFloats)
    __builtin_prefetch(row + kRowsAhead * ld + j, static_cast<int>(kAccess), 3);
}

/// The same for rows of several heads.
constexpr std::int64_t kHeadRowsAhead = 4, kLongestHeads = 4096;

#ifdef CLEAVE_HAS_AVX512
constexpr std::int64_t kLine = 16, kAhead = 512, kShort = 128;  // floats

CLEAVE_AVX512_INLINE void copy_run(const float* from, std::int64_t n, float* to) {
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) / sizeof(float)) % kLine;
  const std::int64_t head = (kLine - past) % kLine, lines = (n - head) / kLine * kLine;
  if (head > 0) copy_as_usual(from, head, to);
  for (std::int64_t i = head; i < head + lines; i += kLine) {
    __builtin_prefetch(from + i + kAhead, 0, 2);
    _mm512_stream_ps(to + i, _mm512_loadu_ps(from + i));
  }
  const std::int64_t tail = n - head - lines;
  if (tail > 0) copy_as_usual(from + n - tail, tail, to + n - tail);
}

CLEAVE_AVX512 void copy_runs(ConstRows from, float* to) {
  if (from.ld == from.cols) {
    copy_run(from.data, from.rows * from.cols, to);
  } else {
    for (std::int64_t i = 0; i < from.rows; ++i) copy_run(from.row(i), from.cols, to + i * from.cols);
  }
  _mm_sfence();
}
#endif

}  // namespace

void copy_past_caches(ConstRows from, float* to) {
#ifdef CLEAVE_HAS_AVX512
  if (has_avx512() && from.cols >= kShort) return copy_runs(from, to);
#endif
  for (std::int64_t i = 0; i < from.rows; ++i) {
    fetch_row_ahead<Access::read>(from.row(i), from.cols, from.ld);
    copy_as_usual(from.row(i), from.cols, to + i * from.cols);
  }
}

void copy_rows(const float* from, Rows to) {
  for (std::int64_t i = 0; i < to.rows; ++i) {
    fetch_row_ahead<Access::write>(to.row(i), to.cols, to.ld);
    copy_as_usual(from + i * to.cols, to.cols, to.row(i));
  }
}

bool copy_finite_rows(const float* from, Rows to) {
  bool finite = true;
  for (std::int64_t i = 0; i < to.rows; ++i) {
    fetch_row_ahead<Access::write>(to.row(i), to.cols, to.ld);
    finite &= copy_finite(from + i * to.cols, to.cols, to.row(i));
  }
  return finite;
}

void copy_heads(ConstRows from, std::int64_t heads, float* to, std::int64_t apart) {
  const std::int64_t cols = from.cols / heads;
  for (std::int64_t i = 0; i < from.rows; ++i) {
    fetch_row_ahead<Access::read, kHeadRowsAhead, kLongestHeads>(from.row(i), from.cols, from.ld);
    copy_pieces(from.row(i), heads, cols, to + i * cols, apart);
  }
}

bool copy_finite_heads(const float* from, std::int64_t apart, std::int64_t heads, Rows to) {
  const std::int64_t cols = to.cols / heads;
  bool finite = true;
  for (std::int64_t i = 0; i < to.rows; ++i) {
    fetch_row_ahead<Access::write, kHeadRowsAhead, kLongestHeads>(to.row(i), to.cols, to.ld);
    finite &= copy_finite_pieces(from + i * cols, apart, heads, cols, to.row(i));
  }
  return finite;
}

}  // namespace cleave::kernels
