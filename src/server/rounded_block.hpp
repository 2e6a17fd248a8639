// The operands of a block as the device that computes it sees them.
#pragma once

#include <cstdint>
#include <span>

#include "blocks.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/kernels/wire.hpp"

namespace cleave::server {

/// The part of an operand that a tasklet works on, in fp32, rounded to the wire type: a copy only where rounding needs
/// one. `from` must outlive it.
struct RoundedBlock {
  RoundedBlock(kernels::ConstMatrix from, std::int64_t rows, std::int64_t cols, DType wire) : view(from) {
    if (wire == DType::f32) return;
    copy.resize(static_cast<std::size_t>(rows * cols));
    gather(from, rows, cols, DType::f32, reinterpret_cast<std::byte*>(copy.data()));
    kernels::round_to(wire, kernels::Rows(copy.data(), rows, cols));
    view = kernels::ConstMatrix(copy.data(), cols);
  }
  KeptVector<float> copy;
  kernels::ConstMatrix view;
};

/// exponents[begin, begin + count), or none where there are none.
inline std::span<const std::int16_t> part_of(std::span<const std::int16_t> exponents, std::int64_t begin,
                                             std::int64_t count) {
  if (exponents.empty()) return {};
  return exponents.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

}  // namespace cleave::server
