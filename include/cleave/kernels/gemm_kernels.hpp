// Which of BLIS's kernels this process uses: products differ in their last bits from one family to another, so all
// ranks of a run must use the same. The server announces its choice; a rank that cannot follow refuses to start.
//
// BLIS knows AVX-512 processors by name only and falls back to slower kernels on a name it has not heard of; the
// choice here is made from what CPUID says the processor can do.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cleave::kernels {

/// Values travel between ranks: append, never renumber.
enum class GemmKernels : int { generic = 0, haswell = 1, skx = 2, cortexa57 = 3 };

/// All families, of one architecture the slower first.
[[nodiscard]] std::span<const GemmKernels> all_gemm_kernels();

/// "generic", "haswell", "skx" or "cortexa57", as inputs have it.
[[nodiscard]] std::string_view name_of(GemmKernels kernels);
/// The family of that name; none for any other text.
[[nodiscard]] std::optional<GemmKernels> parse_gemm_kernels(std::string_view name);

/// Whether this processor can run them (haswell: AVX2 and FMA; skx: AVX-512 F, DQ, BW and VL; cortexa57: any 64-bit
/// Arm), and BLIS was built with them.
[[nodiscard]] bool is_usable(GemmKernels kernels);

/// The fastest family that this processor can run, or what the user's BLIS_ARCH_TYPE asks for.
/// Errors: EnvironmentError where BLIS_ARCH_TYPE asks for a family that is not one of GemmKernels.
[[nodiscard]] GemmKernels best_gemm_kernels();

/// Fixes the family for the life of the process and initialises BLIS. Asking for the same family again is fine. The
/// first product of a process that has made no choice selects best_gemm_kernels(). Errors: EnvironmentError where the
/// processor cannot run them, BLIS lacks them, or another family is in use already.
void select_gemm_kernels(GemmKernels kernels);

/// The family in use; selects best_gemm_kernels() if none is. Errors: as select_gemm_kernels.
GemmKernels selected_gemm_kernels();

/// Name and version of the library behind the products, for --version: "BLIS 0.9.0 (openmp)".
[[nodiscard]] std::string gemm_library();

}  // namespace cleave::kernels
