// Memory that a tasklet takes on a device: the one formula that the planner obeys (plan::resident_bytes) and that every
// device enforces (device). Strips, panels in flight, accumulators and results; headers and alignment do not count.
//
// A tasklet's data travel in `panels` steps, in an order that decides what must stay: while one panel is computed its
// neighbour travels, so two are in memory as soon as there are two.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cleave/base/shapes.hpp"
#include "cleave/base/units.hpp"

namespace cleave {

/// The order in which a tasklet's panels travel: chosen by the planner, sent with the task, obeyed by the device.
enum class PanelOrder : std::uint8_t {
  whole = 0,           ///< one panel: everything down, multiply, everything up
  wavefront = 1,       ///< panels of A and B in turn, each completing blocks of C
  row_resident = 2,    ///< the shorter of the strips stays, the other one streams by
  result_resident = 3  ///< the result stays, k streams by
};

/// Bytes of a row of A's or column of B's norm exponent, where the operation has several K blocks.
inline constexpr std::int64_t kNormExponentBytes = 2;

/// How many of `panels` panels bring operands where the result stays resident. The last of these, and every panel after
/// it, returns a part of the result, so that other traffic does not wait long for either link.
constexpr std::int64_t result_resident_down(std::int64_t panels) { return (panels + 1) / 2; }

/// Bytes of an element of C on the device: its accumulator or its result, whichever is larger. Arguments: as
/// gemm_resident_bytes().
constexpr std::int64_t cell_bytes(DType wire, bool many_blocks, bool whole_depth) {
  const std::int64_t element = size_of(wire), sum = size_of(partial_sum_type(wire));
  return std::max(many_blocks ? sum : element, whole_depth ? element : sum);
}

/// Memory of a box whose result stays while k streams by: the operands of `depth` elements of k at once, and C.
/// Arguments: as gemm_resident_bytes().
constexpr Bytes gemm_streamed_bytes(GemmShape box, DType wire, bool many_blocks, bool whole_depth, std::int64_t depth) {
  const std::int64_t exponent = many_blocks ? kNormExponentBytes : 0;
  return Bytes((box.m + box.n) * (std::min(box.k, depth) * size_of(wire) + exponent) +
               box.m * box.n * cell_bytes(wire, many_blocks, whole_depth));
}

/// Memory of a tasklet: a box m x n x k of a GEMM whose operands travel as `wire`, in `panels` panels in this order.
/// `many_blocks`: the operation has several K blocks. `whole_depth`: the box covers all of them, so its result is
/// finished and not a partial sum.
constexpr Bytes gemm_resident_bytes(GemmShape box, DType wire, bool many_blocks, bool whole_depth, PanelOrder order,
                                    std::int64_t panels) {
  const std::int64_t strip = box.k * size_of(wire) + (many_blocks ? kNormExponentBytes : 0);
  const std::int64_t cell = cell_bytes(wire, many_blocks, whole_depth);
  const std::int64_t count = std::max<std::int64_t>(panels, 1), in_flight = count > 1 ? 2 : 1;
  const auto largest = [count](std::int64_t total) { return (total + count - 1) / count; };
  const std::int64_t area = box.m * box.n, shorter = std::min(box.m, box.n), longer = std::max(box.m, box.n);
  switch (order) {
    case PanelOrder::whole: break;
    case PanelOrder::wavefront: {
      const std::int64_t rim = area - (box.m - largest(box.m)) * (box.n - largest(box.n));  // no rim is larger
      return Bytes((box.m + box.n) * strip + std::min(area, in_flight * rim) * cell);
    }
    case PanelOrder::row_resident: {
      const std::int64_t streamed = std::min(longer, in_flight * largest(longer));
      return Bytes((shorter + streamed) * strip + shorter * streamed * cell);
    }
    case PanelOrder::result_resident: {
      const std::int64_t down = result_resident_down(count);
      const std::int64_t blocks = (k_blocks(box.k) + down - 1) / down;
      return gemm_streamed_bytes(box, wire, many_blocks, whole_depth, in_flight * kBlockK * blocks);
    }
  }
  return Bytes((box.m + box.n) * strip + area * cell);
}

/// Memory of columns of B that stay on a device from tasklet to tasklet: n columns of depth k, and norm exponents.
constexpr Bytes kept_columns_bytes(std::int64_t n, std::int64_t k, DType wire, bool many_blocks) {
  return Bytes(n * (k * size_of(wire) + (many_blocks ? kNormExponentBytes : 0)));
}

/// Memory of a tasklet whose columns of B the device keeps already; kept_columns_bytes() counts those. Rows of A stream
/// by. Arguments: as gemm_resident_bytes().
constexpr Bytes gemm_resident_bytes_beside_columns(GemmShape box, DType wire, bool many_blocks, bool whole_depth,
                                                   std::int64_t panels) {
  const std::int64_t count = std::max<std::int64_t>(panels, 1), largest = (box.m + count - 1) / count;
  const std::int64_t rows = std::min(box.m, (count > 1 ? 2 : 1) * largest);
  const GemmShape streamed{rows, box.n, box.k};
  return gemm_resident_bytes(streamed, wire, many_blocks, whole_depth, PanelOrder::whole, 1) -
         kept_columns_bytes(box.n, box.k, wire, many_blocks);
}

/// Memory of a tasklet of `pairs` attention pairs, each with `queries` query heads: operands and results of the panel
/// that is computed and of the one that travels.
constexpr Bytes attention_resident_bytes(std::int64_t pairs, std::int64_t queries, std::int64_t seq,
                                         std::int64_t head_dim, DType wire, bool backward, std::int64_t panels) {
  const std::int64_t count = std::max<std::int64_t>(panels, 1), largest = (pairs + count - 1) / count;
  const std::int64_t matrix = seq * head_dim * size_of(wire);
  // Forward: Q, K, V and O. Backward: Q, K, V, dO and dQ, dK, dV.
  const std::int64_t matrices = backward ? (2 * queries + 2) + (queries + 2) : (queries + 2) + queries;
  return Bytes((count > 1 ? 2 : 1) * largest * matrices * matrix);
}

}  // namespace cleave
