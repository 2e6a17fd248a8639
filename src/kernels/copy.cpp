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

/// Whether all n numbers are finite, that is, none has every bit of the exponent.
CLEAVE_CLONES bool copy_finite(const float* from, std::int64_t n, float* to) {
  constexpr std::uint32_t kMagnitude = 0x7fff'ffffU, kLargest = 0x7f7f'ffffU;
  std::uint32_t beyond = 0;  // the top bit: something was larger than the largest number
  for (std::int64_t j = 0; j < n; ++j) {
    std::uint32_t bits = 0;
    __builtin_memcpy(&bits, from + j, sizeof bits);
    beyond |= kLargest - (bits & kMagnitude);
    __builtin_memcpy(to + j, &bits, sizeof bits);
  }
  return (beyond >> 31) == 0;
}

enum class Access { read = 0, write = 1 };

/// Asks for a row some rows later: short rows far apart are no stream that the processor recognises. Longer ones are.
template <Access kAccess>
void fetch_row_ahead(const float* row, std::int64_t cols, std::int64_t ld) {
  constexpr std::int64_t kRowsAhead = 32, kLongest = 256, kLineFloats = 16;
  if (cols > kLongest) return;
  for (std::int64_t j = 0; j < cols; j += kLineFloats)
    __builtin_prefetch(row + kRowsAhead * ld + j, static_cast<int>(kAccess), 3);
}

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

}  // namespace cleave::kernels
