// BLIS's micro-kernel: C[mr x nr] (+)= A[mr x k] B[k x nr] on packed micro-panels, the loop in which products spend
// their time. Its blocking and storage are read from BLIS, so any family of kernels fits the loops of
// block_product.hpp.
#pragma once

#include <cstdint>

namespace cleave::kernels {

/// Floats beyond the panels that it is given, which the micro-kernel may fetch.
inline constexpr std::int64_t kBeyond = 1024;

/// The micro-kernel of the selected family (gemm_kernels.hpp).
class MicroKernel {
 public:
  /// Selects a family where none was. Errors: EnvironmentError.
  static const MicroKernel& selected();

  std::int64_t mr = 0, nr = 0;        ///< rows and columns of a full micro-tile
  std::int64_t kc = 0;                ///< depth of one call at most; divides kBlockK
  std::int64_t mc_kc = 0, nc_kc = 0;  ///< elements of an A that fills the second-level cache, of a B the third
  bool by_rows = false;               ///< stores rows of C fastest; otherwise columns
  bool has_edges = false;             ///< micro-tiles that are not full have a kernel of their own

  /// C[m x n] = A B + (accumulate ? C : 0) for m <= mr, n <= nr, k <= kc. Micro-panels: element (i, t) of A at
  /// a[t mr + i], element (t, j) of B at b[t nr + j], all mr and nr of them readable. next_a, next_b: the panels of the
  /// next call, which may be fetched ahead.
  void operator()(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, bool accumulate,
                  float* c, std::int64_t row_stride, std::int64_t col_stride, const float* next_a,
                  const float* next_b) const;

 private:
  MicroKernel();
  [[nodiscard]] bool edges_agree() const;
  // BLIS's own.
  void call(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, bool accumulate, float* c,
            std::int64_t row_stride, std::int64_t col_stride, const float* next_a, const float* next_b) const;

  void* context_ = nullptr;   // BLIS's cntx_t
  void* function_ = nullptr;  // its sgemm_ukr_ft
};

}  // namespace cleave::kernels
