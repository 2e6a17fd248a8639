// Which sanitizer a file is compiled with: CLEAVE_ADDRESS_SANITIZER, CLEAVE_THREAD_SANITIZER, for #ifdef. GCC and Clang
// say so in different ways.
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CLEAVE_ADDRESS_SANITIZER
#endif
#if __has_feature(thread_sanitizer)
#define CLEAVE_THREAD_SANITIZER
#endif
#endif

#if defined(__SANITIZE_ADDRESS__) && !defined(CLEAVE_ADDRESS_SANITIZER)
#define CLEAVE_ADDRESS_SANITIZER
#endif
#if defined(__SANITIZE_THREAD__) && !defined(CLEAVE_THREAD_SANITIZER)
#define CLEAVE_THREAD_SANITIZER
#endif
