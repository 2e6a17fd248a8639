// Widening and narrowing of whole blocks.
#include "wire_buffers.hpp"

#include <cstdint>

#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/wire.hpp"

namespace cleave::device {

const float* widened(DType wire, std::span<const std::byte> bytes, std::vector<float>& buffer) {
  if (wire == DType::f32) return reinterpret_cast<const float*>(bytes.data());
  const auto elements = static_cast<std::int64_t>(bytes.size()) / size_of(wire);
  buffer.resize(static_cast<std::size_t>(elements));
  kernels::widen(wire, reinterpret_cast<const std::uint16_t*>(bytes.data()), elements,
                 kernels::Rows(buffer.data(), 1, elements));
  return buffer.data();
}

float* target(DType wire, std::span<std::byte> bytes, std::vector<float>& buffer) {
  if (wire == DType::f32) return reinterpret_cast<float*>(bytes.data());
  buffer.resize(bytes.size() / static_cast<std::size_t>(size_of(wire)));
  return buffer.data();
}

void narrow_into(DType wire, const float* from, std::span<std::byte> bytes) {
  if (wire == DType::f32) return;
  const auto elements = static_cast<std::int64_t>(bytes.size()) / size_of(wire);
  kernels::narrow(wire, kernels::ConstRows(from, 1, elements), reinterpret_cast<std::uint16_t*>(bytes.data()),
                  elements);
}

}  // namespace cleave::device
