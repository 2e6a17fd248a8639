// Reads the micro-kernel and its blocking from the context that BLIS keeps for the family of kernels in use.
#include "micro_kernel.hpp"

#include <blis.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "cleave/base/error.hpp"
#include "cleave/kernels/gemm_kernels.hpp"

namespace cleave::kernels {

namespace {

// Elements; 0 where the system does not know.
std::int64_t second_level_cache() {
  return std::max<std::int64_t>(0, ::sysconf(_SC_LEVEL2_CACHE_SIZE)) / static_cast<std::int64_t>(sizeof(float));
}

}  // namespace

MicroKernel::MicroKernel() {
  selected_gemm_kernels();
  cntx_t* context = bli_gks_query_cntx();
  context_ = context;
  function_ = bli_cntx_get_l3_nat_ukr_dt(BLIS_FLOAT, BLIS_GEMM_UKR, context);
  mr = bli_cntx_get_blksz_def_dt(BLIS_FLOAT, BLIS_MR, context);
  nr = bli_cntx_get_blksz_def_dt(BLIS_FLOAT, BLIS_NR, context);
  kc = bli_cntx_get_blksz_def_dt(BLIS_FLOAT, BLIS_KC, context);
  mc_kc = std::max(bli_cntx_get_blksz_def_dt(BLIS_FLOAT, BLIS_MC, context) * kc, second_level_cache() * 2 / 3);
  nc_kc = bli_cntx_get_blksz_def_dt(BLIS_FLOAT, BLIS_NC, context) * kc;
  by_rows = bli_cntx_l3_nat_ukr_prefers_rows_dt(BLIS_FLOAT, BLIS_GEMM_UKR, context);
  // A family whose packed panels were padded would need wider panels than block_product.cpp packs; none of ours is.
  CLEAVE_ASSERT(bli_cntx_get_blksz_max_dt(BLIS_FLOAT, BLIS_MR, context) == mr &&
                    bli_cntx_get_blksz_max_dt(BLIS_FLOAT, BLIS_NR, context) == nr,
                "micro-panels of {} x {} are padded", mr, nr);
}

const MicroKernel& MicroKernel::selected() {
  static const MicroKernel kernel;
  return kernel;
}

void MicroKernel::operator()(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b,
                             bool accumulate, float* c, std::int64_t row_stride, std::int64_t col_stride,
                             const float* next_a, const float* next_b) const {
  float one = 1, beta = accumulate ? 1.0F : 0.0F;
  auxinfo_t info{};
  // BLIS declares its inputs without const and does not write to them.
  bli_auxinfo_set_next_a(const_cast<float*>(next_a), &info);
  bli_auxinfo_set_next_b(const_cast<float*>(next_b), &info);
  reinterpret_cast<sgemm_ukr_ft>(function_)(m, n, k, &one, const_cast<float*>(a), const_cast<float*>(b), &beta, c,
                                            row_stride, col_stride, &info, static_cast<cntx_t*>(context_));
}

}  // namespace cleave::kernels
