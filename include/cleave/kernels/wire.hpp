// fp32 to and from the 16-bit types that may travel between server and device, rounded to nearest even as IEEE 754
// says: too large becomes infinity, NaN stays NaN (made quiet), subnormals are kept.
//
// Callers: the server rounds an operand once, before it is cut into strips; a device rounds a result once, after its K
// sum is complete. The same bits on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

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

/// Rows to and from bytes of a wire type: f32, bf16 or f16, rows one after another without gaps.
void to_wire(DType type, ConstRows from, std::byte* to);
void from_wire(DType type, const std::byte* from, Rows to);

/// x = widen(narrow(x)) in place: what the other side will see. fp32 leaves x as it is.
void round_to(DType type, Rows x);

}  // namespace cleave::kernels
