// Long rows go past the caches by non-temporal stores, a line at a time; short ones, which are no stream that a
// processor recognises, through them with the rows that follow asked for.
#include "cleave/kernels/copy.hpp"

#include <cstdint>
#include <cstring>

#include "intrinsics.hpp"
#include "versions.hpp"

namespace cleave::kernels {

namespace {

/// What is asked of the numbers that are copied.
enum class Look { none, finite };

constexpr std::int32_t kMagnitude = 0x7fff'ffff, kLargest = 0x7f7f'ffff;  // of a number's bits

void copy_as_usual(const float* from, std::int64_t n, float* to) {
  std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
}

/// The top bit of `beyond` is set where one of n numbers is infinite or NaN, that is, has every bit of the exponent.
CLEAVE_INLINE bool copy_finite(const float* from, std::int64_t n, float* to) {
  std::uint32_t beyond = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    std::uint32_t bits = 0;
    __builtin_memcpy(&bits, from + j, sizeof bits);
    beyond |= static_cast<std::uint32_t>(kLargest) - (bits & static_cast<std::uint32_t>(kMagnitude));
    __builtin_memcpy(to + j, &bits, sizeof bits);
  }
  return (beyond >> 31) == 0;
}

#ifdef CLEAVE_HAS_VERSIONS
constexpr std::int64_t kLine = 16, kAhead = 512, kShort = 128, kLongestShort = 256;  // floats

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

/// Copies whole lines, or of one line what `which` selects, and collects in `beyond` what copy_finite() does.
template <Look kLook, int kLines>
CLEAVE_AVX512_INLINE void copy_lines(const float* from, float* to, __mmask16 which, __m512i& beyond) {
  __m512i bits[kLines];
  for (int l = 0; l < kLines; ++l) {
    bits[l] = _mm512_maskz_loadu_epi32(which, from + l * kLine);
    if constexpr (kLook == Look::finite) {
      const __m512i magnitude = _mm512_and_si512(bits[l], _mm512_set1_epi32(kMagnitude));
      beyond = _mm512_or_si512(beyond, _mm512_sub_epi32(_mm512_set1_epi32(kLargest), magnitude));
    }
  }
  for (int l = 0; l < kLines; ++l) _mm512_mask_storeu_epi32(to + l * kLine, which, bits[l]);
}

template <Look kLook>
CLEAVE_AVX512 bool copy_short_rows(ConstRows from, Rows to) {
  constexpr std::int64_t kRowsAhead = 8;
  constexpr __mmask16 kAll = 0xffff;
  __m512i beyond = _mm512_setzero_si512();
  for (std::int64_t i = 0; i < from.rows; ++i) {
    const float* const row = from.row(i);
    float* const copy = to.row(i);
    for (std::int64_t j = 0; j < from.cols; j += kLine) {
      // Rows that follow one another the processor writes as one stream.
      if (to.ld != to.cols) __builtin_prefetch(copy + kRowsAhead * to.ld + j, 1, 3);
      __builtin_prefetch(row + kRowsAhead * from.ld + j, 0, 3);
    }
    std::int64_t j = 0;
    for (; j + 4 * kLine <= from.cols; j += 4 * kLine) copy_lines<kLook, 4>(row + j, copy + j, kAll, beyond);
    for (; j + kLine <= from.cols; j += kLine) copy_lines<kLook, 1>(row + j, copy + j, kAll, beyond);
    const auto rest = static_cast<__mmask16>((1U << (from.cols - j)) - 1);
    if (rest != 0) copy_lines<kLook, 1>(row + j, copy + j, rest, beyond);
  }
  return _mm512_movepi32_mask(beyond) == 0;
}
#endif

/// to(i, j) = from(i, j). False where a look finds what is infinite or NaN.
template <Look kLook>
bool copy_each(ConstRows from, Rows to) {
#ifdef CLEAVE_HAS_VERSIONS
  if (usable_instructions() >= Instructions::avx512 && from.cols <= kLongestShort)
    return copy_short_rows<kLook>(from, to);
#endif
  bool finite = true;
  for (std::int64_t i = 0; i < from.rows; ++i) {
    if constexpr (kLook == Look::finite)
      finite &= dispatch<copy_finite>(from.row(i), from.cols, to.row(i));
    else
      copy_as_usual(from.row(i), from.cols, to.row(i));
  }
  return finite;
}

}  // namespace

void copy_past_caches(ConstRows from, float* to) {
#ifdef CLEAVE_HAS_VERSIONS
  if (usable_instructions() >= Instructions::avx512 && from.cols >= kShort) return copy_runs(from, to);
#endif
  copy_each<Look::none>(from, {to, from.rows, from.cols});
}

void copy_rows(ConstRows from, float* to) { copy_each<Look::none>(from, {to, from.rows, from.cols}); }

void copy_rows(const float* from, Rows to) { copy_each<Look::none>({from, to.rows, to.cols}, to); }

bool copy_finite_rows(const float* from, Rows to) { return copy_each<Look::finite>({from, to.rows, to.cols}, to); }

}  // namespace cleave::kernels
