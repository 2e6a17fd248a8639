// The common case in vector code; rows with high words are rare, and plain loops do for them.
#include "unit_rows.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "integers.hpp"
#include "versions.hpp"

namespace cleave::kernels::units {

namespace {

using quantize::nearest;
using quantize::to_double;
using quantize::wrapping_add;

constexpr float kNarrow = 0x1p30F;  // what one product adds to low words alone stays below
constexpr std::int32_t kFits = std::int32_t{1} << 30;

// |x| <= kMostAdded, so one addition leaves the integer in the low bits.
CLEAVE_INLINE std::int64_t nearest_of_added(double x) {
  constexpr double kUnits = 0x1.8p52;
  return std::bit_cast<std::int64_t>(x + kUnits) - std::bit_cast<std::int64_t>(kUnits);
}

CLEAVE_INLINE double cut_off(double x) {
  x = x < kMostAdded ? x : kMostAdded;
  return x > -kMostAdded ? x : -kMostAdded;
}

CLEAVE_INLINE std::uint32_t not_finite_bit(float x) {
  return 0x7f7fffffu - (std::bit_cast<std::uint32_t>(x) & 0x7fffffffu);
}

CLEAVE_INLINE bool add_loop(const float* x, std::int64_t n, double factor, std::int64_t* sums) {
  std::uint32_t bad = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    bad |= not_finite_bit(x[j]);
    sums[j] = wrapping_add(sums[j], nearest_of_added(cut_off(static_cast<double>(x[j]) * factor)));
  }
  return (bad >> 31) != 0;
}

CLEAVE_INLINE std::int32_t narrow_unit(float x, float factor, bool& fits) {
  const float value = x * factor;
  fits = value > -kNarrow && value < kNarrow;
  std::int32_t q;
  nearest(fits ? value : 0.0F, q);
  return q;
}

// The top bit: the sum of a and b is beyond what 32 bits hold.
CLEAVE_INLINE std::uint32_t beyond_bit(std::int32_t a, std::int32_t b, std::int32_t sum) {
  return static_cast<std::uint32_t>((a ^ sum) & (b ^ sum));
}

CLEAVE_INLINE bool add_narrow_loop(const float* x, std::int64_t n, float factor, std::int32_t* low) {
  std::uint32_t beyond = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    bool fits;
    const std::int32_t q = narrow_unit(x[j], factor, fits), sum = wrapping_add(low[j], q);
    beyond |= beyond_bit(low[j], q, sum) | (fits ? 0u : 0x80000000u);
    low[j] = sum;
  }
  return (beyond >> 31) == 0;
}

CLEAVE_INLINE void take_back_loop(const float* x, std::int64_t n, float factor, std::int32_t* low) {
  for (std::int64_t j = 0; j < n; ++j) {
    bool fits;
    low[j] = wrapping_add(low[j], -narrow_unit(x[j], factor, fits));
  }
}

CLEAVE_INLINE bool add_narrow_integers_loop(const std::int32_t* from, std::int64_t n, std::int32_t* low) {
  std::uint32_t beyond = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    const std::int32_t sum = wrapping_add(low[j], from[j]);
    beyond |= beyond_bit(low[j], from[j], sum);
    low[j] = sum;
  }
  return (beyond >> 31) == 0;
}

template <class Int>
CLEAVE_INLINE void finish_loop(const Int* sums, std::int64_t n, double factor, float most, float* c) {
  for (std::int64_t j = 0; j < n; ++j) {
    const auto value = static_cast<float>(to_double(sums[j]) * factor);
    const float below = value < most ? value : most;
    c[j] = below > -most ? below : -most;
  }
}

CLEAVE_INLINE bool fits_loop(const std::int32_t* low, std::int64_t n) {
  std::int32_t largest = 0, smallest = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    largest = low[j] > largest ? low[j] : largest;
    smallest = low[j] < smallest ? low[j] : smallest;
  }
  return largest <= kFits && smallest >= -kFits;
}

std::int64_t joined(std::int32_t low, std::int32_t high) {
  return wrapping_add(std::int64_t{high} * (std::int64_t{1} << 32), std::int64_t{low});
}

void split(std::int64_t value, std::int32_t& low, std::int32_t& high) {
  low = static_cast<std::int32_t>(static_cast<std::uint64_t>(value));
  high = static_cast<std::int32_t>(wrapping_add(value, -std::int64_t{low}) >> 32);
}

}  // namespace

bool add(const float* x, std::int64_t n, double factor, std::int64_t* sums) {
  return dispatch<add_loop>(x, n, factor, sums);
}

bool add_narrow(const float* x, std::int64_t n, double factor, std::int32_t* low) {
  const auto narrow = static_cast<float>(factor);
  if (dispatch<add_narrow_loop>(x, n, narrow, low)) return true;
  dispatch<take_back_loop>(x, n, narrow, low);
  return false;
}

bool add_wide(const float* x, std::int64_t n, double factor, std::int32_t* low, std::int32_t* high) {
  bool bad = false;
  for (std::int64_t j = 0; j < n; ++j) {
    bad |= !std::isfinite(x[j]);
    const std::int64_t q = nearest_of_added(cut_off(static_cast<double>(x[j]) * factor));
    split(wrapping_add(joined(low[j], high[j]), q), low[j], high[j]);
  }
  return bad;
}

bool add_narrow(const std::int32_t* from, std::int64_t n, std::int32_t* low) {
  if (dispatch<add_narrow_integers_loop>(from, n, low)) return true;
  for (std::int64_t j = 0; j < n; ++j)
    low[j] = static_cast<std::int32_t>(static_cast<std::uint32_t>(low[j]) - static_cast<std::uint32_t>(from[j]));
  return false;
}

template <class Int>
void add_wide(const Int* from, std::int64_t n, std::int32_t* low, std::int32_t* high) {
  for (std::int64_t j = 0; j < n; ++j)
    split(wrapping_add(joined(low[j], high[j]), std::int64_t{from[j]}), low[j], high[j]);
}

template <class Int>
void finish(const Int* sums, std::int64_t n, double factor, float most, float* c) {
  dispatch<finish_loop<Int>>(sums, n, factor, most, c);
}

void finish(const std::int32_t* low, const std::int32_t* high, std::int64_t n, double factor, float most, float* c) {
  for (std::int64_t j = 0; j < n; ++j) {
    const std::int64_t sum = joined(low[j], high[j]);
    finish_loop(&sum, 1, factor, most, c + j);
  }
}

void join(const std::int32_t* low, const std::int32_t* high, std::int64_t n, std::int64_t* sums) {
  for (std::int64_t j = 0; j < n; ++j) sums[j] = high == nullptr ? low[j] : joined(low[j], high[j]);
}

bool fits(const std::int32_t* low, std::int64_t n) { return dispatch<fits_loop>(low, n); }

template void add_wide(const std::int32_t*, std::int64_t, std::int32_t*, std::int32_t*);
template void add_wide(const std::int64_t*, std::int64_t, std::int32_t*, std::int32_t*);
template void finish(const std::int32_t*, std::int64_t, double, float, float*);
template void finish(const std::int64_t*, std::int64_t, double, float, float*);

}  // namespace cleave::kernels::units
