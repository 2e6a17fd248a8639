// Operands and results between their types on the wire and fp32, in which everything is computed.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cleave/base/shapes.hpp"

namespace cleave::device {

/// fp32 operands are read where they arrived; narrower ones are widened into `buffer`. Any shape: one row.
[[nodiscard]] const float* widened(DType wire, std::span<const std::byte> bytes, std::vector<float>& buffer);

/// Where an fp32 result is computed: in the frame itself when it travels as fp32.
[[nodiscard]] float* target(DType wire, std::span<std::byte> bytes, std::vector<float>& buffer);

/// Rounds a result once to its wire type; nothing to do for fp32.
void narrow_into(DType wire, const float* from, std::span<std::byte> bytes);

}  // namespace cleave::device
