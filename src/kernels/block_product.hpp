// The product of one K block, band by band: BLIS's micro-kernel under loops of our own.
//
// The loops are BLIS's (Van Zee and van de Geijn, "BLIS: a framework for rapidly instantiating BLAS functionality", ACM
// TOMS 41(3), 2015): one operand packed for the second-level cache, the other streamed past it. They are written out
// here so that a band of the result can be used while it is in the first-level cache, instead of in a pass of its own.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cleave/base/shapes.hpp"
#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/matrix.hpp"

namespace cleave::kernels {

/// Rows [i0, i1) x columns [j0, j1) of a product, element (i, j) at data[(i - i0) ld + (j - j0)].
struct ResultBand {
  std::int64_t i0 = 0, i1 = 0, j0 = 0, j1 = 0;
  float* data = nullptr;
  std::int64_t ld = 0;

  [[nodiscard]] float* row(std::int64_t i) const { return data + (i - i0) * ld; }
  [[nodiscard]] std::int64_t rows() const { return i1 - i0; }
  [[nodiscard]] std::int64_t cols() const { return j1 - j0; }
};

/// A reference to a callable that outlives the call it is passed to.
class BandUse {
 public:
  template <class Use>
  BandUse(Use& use)  // NOLINT(google-explicit-constructor)
      : use_(const_cast<std::remove_const_t<Use>*>(&use)),
        call_([](void* object, const ResultBand& band) { (*static_cast<Use*>(object))(band); }) {}
  void operator()(const ResultBand& band) const { call_(use_, band); }

 private:
  void* use_;
  void (*call_)(void*, const ResultBand&);
};

/// P = A B, or C + A B to accumulate, over one K block; `use` is called once for each band of P, on the calling
/// thread, in any order. Where c.data is given, bands lie in C, which then holds P: contiguous rows (c.col_stride =
/// 1). Otherwise they lie in memory of the calling thread that the next band overwrites. The bits of an element depend
/// on its row of A, its column of B and the family of kernels alone. `packed_b`: B's panels (packed_operand.hpp), where
/// they are there already; B is not read then. Requires: 0 <= shape.k <= kBlockK. A, B and C must not overlap.
void multiply_block(GemmShape shape, ConstMatrix a, ConstMatrix b, Matrix c, BandUse use,
                    Accumulate accumulate = Accumulate::no, const float* packed_b = nullptr);

}  // namespace cleave::kernels
