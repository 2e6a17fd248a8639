// Asked once; the answer cannot change.
#include "processor.hpp"

namespace cleave::kernels {

bool has_avx512() {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool answer = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  }();
  return answer;
#else
  return false;
#endif
}

}  // namespace cleave::kernels
