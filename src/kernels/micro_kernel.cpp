// Reads the micro-kernel and its blocking from the context that BLIS keeps for the family of kernels in use.
#include "micro_kernel.hpp"

#include <blis.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "cleave/base/block_pool.hpp"
#include "cleave/base/error.hpp"
#include "cleave/base/processor.hpp"
#include "cleave/base/random.hpp"
#include "cleave/base/shapes.hpp"
#include "cleave/kernels/gemm_kernels.hpp"
#include "edge_kernel_avx512.hpp"

namespace cleave::kernels {

namespace {

float* floats(const Block& block) { return reinterpret_cast<float*>(block.data()); }

// Elements; 0 where the system does not know.
std::int64_t second_level_cache() {
  return std::max<std::int64_t>(0, ::sysconf(_SC_LEVEL2_CACHE_SIZE)) / static_cast<std::int64_t>(sizeof(float));
}

// The largest divisor of a K block that is no longer than BLIS's own depth.
std::int64_t depth_of_call(std::int64_t longest) {
  std::int64_t depth = std::min(longest, kBlockK);
  while (kBlockK % depth != 0) --depth;
  return depth;
}

}  // namespace

MicroKernel::MicroKernel() {
  selected_gemm_kernels();
  cntx_t* context = bli_gks_query_cntx();
  context_ = context;
  function_ = bli_cntx_get_l3_nat_ukr_dt(BLIS_FLOAT, BLIS_GEMM_UKR, context);
  mr = bli_cntx_get_blksz_def_dt(BLIS_FLOAT, BLIS_MR, context);
  nr = bli_cntx_get_blksz_def_dt(BLIS_FLOAT, BLIS_NR, context);
  kc = depth_of_call(bli_cntx_get_blksz_def_dt(BLIS_FLOAT, BLIS_KC, context));
  mc_kc = std::max(bli_cntx_get_blksz_def_dt(BLIS_FLOAT, BLIS_MC, context) * kc, second_level_cache() * 2 / 3);
  nc_kc = bli_cntx_get_blksz_def_dt(BLIS_FLOAT, BLIS_NC, context) * kc;
  by_rows = bli_cntx_l3_nat_ukr_prefers_rows_dt(BLIS_FLOAT, BLIS_GEMM_UKR, context);
  // A family whose packed panels were padded would need wider panels than block_product.cpp packs; none of ours is.
  CLEAVE_ASSERT(bli_cntx_get_blksz_max_dt(BLIS_FLOAT, BLIS_MR, context) == mr &&
                    bli_cntx_get_blksz_max_dt(BLIS_FLOAT, BLIS_NR, context) == nr,
                "micro-panels of {} x {} are padded", mr, nr);
  has_edges = usable_instructions() == Instructions::avx512 && !by_rows && mr == edge::kRows && nr == edge::kColumns &&
              edges_agree();
}

// Whether a full micro-tile has the same bits either way: BLIS promises no order of additions.
bool MicroKernel::edges_agree() const {
  constexpr std::int64_t kDepth = 53;
  const Random random(1, Purpose::test);
  const auto random_block = [&](std::int64_t count, std::uint64_t first) {
    Block block(static_cast<std::size_t>(count + kBeyond) * sizeof(float));
    for (std::int64_t i = 0; i < count; ++i)
      floats(block)[i] = static_cast<float>(random.uniform(first + static_cast<std::uint64_t>(i)) - 0.5);
    return block;
  };
  const Block a = random_block(mr * kDepth, 0), b = random_block(nr * kDepth, 1U << 20U);
  const Block theirs = random_block(mr * nr, 1U << 21U), ours = random_block(mr * nr, 1U << 21U);
  for (const bool accumulate : {false, true}) {
    call(mr, nr, kDepth, floats(a), floats(b), accumulate, floats(theirs), 1, mr, floats(a), floats(b));
    edge::multiply({mr, nr, kDepth, floats(a), floats(b), accumulate, floats(ours), mr});
    if (std::memcmp(theirs.data(), ours.data(), static_cast<std::size_t>(mr * nr) * sizeof(float)) != 0) return false;
  }
  return true;
}

const MicroKernel& MicroKernel::selected() {
  static const MicroKernel kernel;
  return kernel;
}

void MicroKernel::operator()(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b,
                             bool accumulate, float* c, std::int64_t row_stride, std::int64_t col_stride,
                             const float* next_a, const float* next_b) const {
  if (has_edges && (m < mr || n < nr) && row_stride == 1)
    return edge::multiply({m, n, k, a, b, accumulate, c, col_stride});
  call(m, n, k, a, b, accumulate, c, row_stride, col_stride, next_a, next_b);
}

void MicroKernel::call(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, bool accumulate,
                       float* c, std::int64_t row_stride, std::int64_t col_stride, const float* next_a,
                       const float* next_b) const {
  float one = 1, beta = accumulate ? 1.0F : 0.0F;
  auxinfo_t info{};
  // BLIS declares its inputs without const and does not write to them.
  bli_auxinfo_set_next_a(const_cast<float*>(next_a), &info);
  bli_auxinfo_set_next_b(const_cast<float*>(next_b), &info);
  reinterpret_cast<sgemm_ukr_ft>(function_)(m, n, k, &one, const_cast<float*>(a), const_cast<float*>(b), &beta, c,
                                            row_stride, col_stride, &info, static_cast<cntx_t*>(context_));
}

}  // namespace cleave::kernels
