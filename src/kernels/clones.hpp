// CLEAVE_CLONES: compiles a hot loop for several instruction sets and picks one when the program is loaded.
//
// The rule: use it ONLY where every clone yields the same bits. That holds for element-wise arithmetic (IEEE
// operations; -ffp-contract=off forbids fused multiply-adds) and for reductions whose lanes are written out
// (lanes.hpp), never for a reduction whose order is left to the compiler, nor with -ffast-math and its like.
// Functions called from a clone must be inlined into it (CLEAVE_INLINE): a lambda or a call keeps the baseline code.
#pragma once

#define CLEAVE_INLINE [[gnu::always_inline]] inline

// Sanitizers instrument the resolvers that pick a clone, which run before the sanitizer is ready.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && !defined(CLEAVE_NO_CLONES)
#if __GNUC__ >= 12
#define CLEAVE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLEAVE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#else
#define CLEAVE_CLONES
#endif
