// What files of AVX-512 loops need, where there may be such a processor: intrinsics, and CLEAVE_AVX512 for functions
// that are compiled for it whatever the rest of the program is compiled for. Included by sources alone.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#define CLEAVE_HAS_AVX512 1
#ifndef __clang__  // GCC 12 warns about the undefined registers of its own header (GCC bug 105593)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#define CLEAVE_AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl")))
#define CLEAVE_AVX512_INLINE CLEAVE_AVX512 __attribute__((always_inline)) inline
#endif
