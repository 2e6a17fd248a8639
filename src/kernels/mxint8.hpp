// Rows in mxint8 (cleave/kernels/wire.hpp has the format).
#pragma once

#include <cstddef>
#include <cstdint>

namespace cleave::kernels::mxint8 {

void encode_row(const float* x, std::int64_t columns, std::byte* to);
void decode_row(const std::byte* from, std::int64_t columns, float* x);
/// x = decoded(encoded(x)).
void round_row(float* x, std::int64_t columns);
/// Nothing that encode_row() does not make of finite numbers.
[[nodiscard]] bool is_well_formed(const std::byte* from, std::int64_t columns);

}  // namespace cleave::kernels::mxint8
