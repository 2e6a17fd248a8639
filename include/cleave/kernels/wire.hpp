// fp32 to and from the types that may travel between server and device, rounded to nearest even. The same bits on every
// instruction set.
//
// 16-bit types, as IEEE 754 says: too large becomes infinity, NaN stays NaN (made quiet), subnormals are kept.
//
// mxint8, for rows of the residual stream and of its gradient: the MXINT8 of the OCP Microscaling Formats (MX)
// specification 1.0. kMxBlock neighbouring elements of a row share a power of two,
//
//     x[j] = n[j] * 2^(E - 127 - 6),   n[j] in [-127, 127],   2^(E - 127) <= max |x| < 2^(E - 126)
//
// A row is its n, one byte each, then its E, one byte a block, then zeros up to row_bytes(). E is 7 at least, so that
// smaller blocks are zeros. 255: the block has an infinity or a NaN, and all of it becomes NaN. An n of 128 becomes
// 127. What was rounded once is rounded to itself. Example: 1, 0.1 and zeros: E = 127, n = 64, 6; so 0.1 becomes
// 0.09375.
//
// Callers: the server rounds an operand once, before it is cut into strips; a device rounds a result once, after its K
// sum is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cleave/base/shapes.hpp"
#include "cleave/kernels/matrix.hpp"

namespace cleave::kernels {

/// One number to and from the bit pattern of a 16-bit type.
[[nodiscard]] std::uint16_t to_bf16(float x);
[[nodiscard]] std::uint16_t to_f16(float x);
[[nodiscard]] float from_bf16(std::uint16_t bits);
[[nodiscard]] float from_f16(std::uint16_t bits);

/// to[i * to_ld + j] = from(i,j) in the 16-bit type. Requires: type is bf16 or f16.
void narrow(DType type, ConstRows from, std::uint16_t* to, std::int64_t to_ld);

/// to(i,j) = from[i * from_ld + j] in fp32, exactly. Requires: type is bf16 or f16.
void widen(DType type, const std::uint16_t* from, std::int64_t from_ld, Rows to);

/// Rows to and from bytes: f32, bf16, f16 or mxint8, rows of row_bytes() one after another without gaps. Requires:
/// mxint8: whole rows, or columns that begin at a multiple of kMxBlock.
void to_wire(DType type, ConstRows from, std::byte* to);
void from_wire(DType type, const std::byte* from, Rows to);

/// What the other side will see: to_wire() and from_wire(), in place. fp32 leaves x as it is. Requires: as to_wire().
void round_to(DType type, Rows x);

/// Rows from a device are as to_wire() makes them, and finite: no infinity or NaN; in mxint8 no E of 255, no n of -128
/// and nothing but zeros at the end of a row. Requires: as to_wire().
[[nodiscard]] bool all_finite(DType type, const std::byte* from, std::int64_t rows, std::int64_t columns);
/// No value is infinite or NaN.
[[nodiscard]] bool all_finite(std::span<const float> values);

}  // namespace cleave::kernels
