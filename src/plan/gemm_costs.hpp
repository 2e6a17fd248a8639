// Bytes per element of a GEMM's box: what the cost model, the bound and the tilings all count with.
#pragma once

#include "cleave/plan/plan.hpp"

namespace cleave::plan {

struct GemmCosts {
  std::int64_t element_bytes = 0;   ///< an element of A or B
  std::int64_t exponent_bytes = 0;  ///< of a row or column: its norm exponent, or nothing
  std::int64_t strip_bytes = 0;     ///< a whole row of A or column of B, as deep as the box
  std::int64_t result_bytes = 0;    ///< an element of C as it goes up
  std::int64_t cell_bytes = 0;      ///< an element of C in memory
};
[[nodiscard]] GemmCosts gemm_costs(const Work& work, const GemmBox& box);

/// End of panel `index` of a box whose depth streams by in `panels` runs of whole K blocks; index -1 is the box's k0.
[[nodiscard]] std::int64_t k_panel_end(const GemmBox& box, std::int64_t panels, std::int64_t index);

}  // namespace cleave::plan
