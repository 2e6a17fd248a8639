// dispatch<loop>(...): a hot loop compiled for several instruction sets, of which each call takes the best that may be
// used (base/processor.hpp).
//
//   CLEAVE_INLINE void scale_row(float* x, std::int64_t n, float factor) { ... }
//   dispatch<scale_row>(x, n, factor);
//
// The rule: use it ONLY where every version yields the same bits. That holds for element-wise arithmetic (IEEE
// operations; -ffp-contract=off forbids fused multiply-adds) and for reductions whose lanes are written out
// (lanes.hpp), never for a reduction whose order is left to the compiler, nor with -ffast-math and its like.
// A loop, and every function that it calls, must be inlined into its versions (CLEAVE_INLINE): a lambda or a call keeps
// the baseline code.
#pragma once

#include "cleave/base/processor.hpp"

#define CLEAVE_INLINE [[gnu::always_inline]] inline

#if defined(__x86_64__) && defined(__GNUC__)
#define CLEAVE_HAS_VERSIONS 1
#define CLEAVE_AVX2 __attribute__((target("avx2,fma,bmi,bmi2")))
#define CLEAVE_AVX512 __attribute__((target("avx2,fma,bmi,bmi2,avx512f,avx512dq,avx512bw,avx512vl")))
#endif

namespace cleave::kernels {

template <auto kLoop, auto kWideLoop>
struct Versions;

template <class Result, class... Arguments, Result (*kLoop)(Arguments...), Result (*kWideLoop)(Arguments...)>
struct Versions<kLoop, kWideLoop> {
  static Result baseline(Arguments... arguments) { return kLoop(arguments...); }
#ifdef CLEAVE_HAS_VERSIONS
  CLEAVE_AVX2 static Result avx2(Arguments... arguments) { return kLoop(arguments...); }
  CLEAVE_AVX512 static Result avx512(Arguments... arguments) { return kWideLoop(arguments...); }
#endif

  static Result best(Arguments... arguments) {
#ifdef CLEAVE_HAS_VERSIONS
    switch (usable_instructions()) {
      case Instructions::avx512: return avx512(arguments...);
      case Instructions::avx2: return avx2(arguments...);
      case Instructions::baseline: break;
    }
#endif
    return baseline(arguments...);
  }
};

/// Calls the loop's best version. Reference parameters of a loop stay references. A loop that names its vectors has a
/// kWideLoop for AVX-512, the same template over vectors of 64 bytes (lanes.hpp).
template <auto kLoop, auto kWideLoop = kLoop>
inline constexpr auto dispatch = &Versions<kLoop, kWideLoop>::best;

}  // namespace cleave::kernels
