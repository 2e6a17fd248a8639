// Rows of products to and from integers that count a fixed unit (token_sums.hpp), where 32 bits hold nearly all of
// them: a row has low words, and only where those do not hold it high words too. An integer is
//   high * 2^32 + low,   low signed; without high words high is 0.
#pragma once

#include <cstdint>

namespace cleave::kernels::units {

/// What one product adds is cut off here, so that the sum of 8191 of them fits 63 bits.
inline constexpr double kMostAdded = 0x1p50;

/// sums[j] += q_j, q_j = x[j] * factor rounded to nearest even and cut off at +-kMostAdded. Returns whether an element
/// was not finite; then the sums are worthless. Requires: factor is a power of two or minus one.
[[nodiscard]] bool add(const float* x, std::int64_t n, double factor, std::int64_t* sums);

/// low[j] += q_j as above if every q_j and every sum fits into 31 bits; otherwise nothing is changed and it returns
/// false.
[[nodiscard]] bool add_narrow(const float* x, std::int64_t n, double factor, std::int32_t* low);
/// The same with high words. Returns whether an element was not finite.
[[nodiscard]] bool add_wide(const float* x, std::int64_t n, double factor, std::int32_t* low, std::int32_t* high);

/// low[j] += from[j] if every sum fits; otherwise as add_narrow().
[[nodiscard]] bool add_narrow(const std::int32_t* from, std::int64_t n, std::int32_t* low);
/// The same with high words. Int: std::int32_t or std::int64_t.
template <class Int>
void add_wide(const Int* from, std::int64_t n, std::int32_t* low, std::int32_t* high);

/// c[j] = float(sums[j] * factor), cut off at +-most. Int: std::int32_t or std::int64_t.
template <class Int>
void finish(const Int* sums, std::int64_t n, double factor, float most, float* c);
void finish(const std::int32_t* low, const std::int32_t* high, std::int64_t n, double factor, float most, float* c);

/// sums[j] = the integers.
void join(const std::int32_t* low, const std::int32_t* high, std::int64_t n, std::int64_t* sums);
/// Whether no integer is beyond +-2^30.
[[nodiscard]] bool fits(const std::int32_t* low, std::int64_t n);

}  // namespace cleave::kernels::units
