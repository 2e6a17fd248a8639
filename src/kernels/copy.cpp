// Non-temporal stores, a line at a time; what is not on a line's boundary, and short copies, go through memcpy.
#include "cleave/kernels/copy.hpp"

#include <cstring>

#include "avx512.hpp"
#include "quantize_avx512.hpp"

namespace cleave::kernels {

namespace {

void copy_as_usual(const float* from, std::int64_t n, float* to) {
  std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
}

#ifdef CLEAVE_HAS_AVX512
constexpr std::int64_t kLine = 16, kAhead = 512, kShort = 64;  // floats

CLEAVE_AVX512 void copy_lines(const float* from, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; i += kLine) {
    __builtin_prefetch(from + i + kAhead, 0, 2);
    _mm512_stream_ps(to + i, _mm512_loadu_ps(from + i));
  }
  _mm_sfence();
}
#endif

}  // namespace

void copy_past_caches(const float* from, std::int64_t n, float* to) {
#ifdef CLEAVE_HAS_AVX512
  static const bool available = quantize::avx512::available();
  if (available && n >= kShort) {
    const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) / sizeof(float)) % kLine;
    const std::int64_t head = (kLine - past) % kLine, lines = (n - head) / kLine * kLine;
    copy_as_usual(from, head, to);
    copy_lines(from + head, lines, to + head);
    return copy_as_usual(from + head + lines, n - head - lines, to + head + lines);
  }
#endif
  copy_as_usual(from, n, to);
}

}  // namespace cleave::kernels
