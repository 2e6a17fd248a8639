// How many cases a test tries.
#pragma once

#include "cleave/base/sanitizer.hpp"

namespace cleave::testing_support {

/// `all`; `few` under the address sanitizer. It makes a program 5 to 20 times as slow and looks at memory alone, of
/// which the hundredth case uses what the first ten did.
template <class T>
constexpr T all_or_few([[maybe_unused]] T all, [[maybe_unused]] T few) {
#ifdef CLEAVE_ADDRESS_SANITIZER
  return few;
#else
  return all;
#endif
}

}  // namespace cleave::testing_support
