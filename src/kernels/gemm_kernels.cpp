// Chooses and fixes BLIS's kernels. BLIS reads BLIS_ARCH_TYPE once, when it is initialised, and takes its own
// enumerators as numbers; it does not check that the processor can run what it is told to use, so that is done here.
#include "cleave/kernels/gemm_kernels.hpp"

#include <blis.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>

#include "cleave/base/error.hpp"
#include "cleave/base/processor.hpp"

namespace cleave::kernels {
namespace {

struct Family {
  GemmKernels kernels;
  std::string_view name;
  arch_t arch;
  Instructions needs;
};
// Of one architecture the slower first.
constexpr std::array kFamilies = {
    Family{GemmKernels::generic, "generic", BLIS_ARCH_GENERIC, Instructions::baseline},
    Family{GemmKernels::haswell, "haswell", BLIS_ARCH_HASWELL, Instructions::avx2},
    Family{GemmKernels::skx, "skx", BLIS_ARCH_SKX, Instructions::avx512},
    Family{GemmKernels::cortexa57, "cortexa57", BLIS_ARCH_CORTEXA57, Instructions::baseline}};
constexpr auto kAll = [] {
  std::array<GemmKernels, kFamilies.size()> all{};
  std::ranges::transform(kFamilies, all.begin(), &Family::kernels);
  return all;
}();
constexpr const char* kVariable = "BLIS_ARCH_TYPE";
constexpr int kNotSelected = -1;

std::atomic<int> selected{kNotSelected};
std::mutex selecting;

// Whether BLIS was built with them: asked for others, it ends the program. Debian builds it for all x86-64, and on Arm
// for the Cortex-A57, whose kernels every 64-bit Arm runs. Built for the processor that builds it (configure auto), it
// may have none of these.
bool is_built(GemmKernels kernels) {
  switch (kernels) {
#ifdef BLIS_CONFIG_GENERIC
    case GemmKernels::generic: return true;
#endif
#ifdef BLIS_CONFIG_HASWELL
    case GemmKernels::haswell: return true;
#endif
#ifdef BLIS_CONFIG_SKX
    case GemmKernels::skx: return true;
#endif
#ifdef BLIS_CONFIG_CORTEXA57
    case GemmKernels::cortexa57: return true;
#endif
    default: return false;
  }
}

const Family& family_of(GemmKernels kernels) {
  for (const auto& family : kFamilies)
    if (family.kernels == kernels) return family;
  throw EnvironmentError("select", fmt::format("BLIS kernels {}", static_cast<int>(kernels)), "no such family");
}

}  // namespace

std::span<const GemmKernels> all_gemm_kernels() { return kAll; }

std::string_view name_of(GemmKernels kernels) { return family_of(kernels).name; }

std::optional<GemmKernels> parse_gemm_kernels(std::string_view name) {
  for (const auto& family : kFamilies)
    if (family.name == name) return family.kernels;
  return std::nullopt;
}

bool is_usable(GemmKernels kernels) { return is_built(kernels) && family_of(kernels).needs <= usable_instructions(); }

GemmKernels best_gemm_kernels() {
  if (const char* wish = std::getenv(kVariable); wish != nullptr && *wish != '\0') {
    char* end = nullptr;
    const long number = std::strtol(wish, &end, 10);
    for (const auto& family : kFamilies)
      if (*end == '\0' && number == static_cast<long>(family.arch)) return family.kernels;
    std::string known;
    for (const auto& family : kFamilies) known += fmt::format("{} ({}), ", static_cast<int>(family.arch), family.name);
    throw EnvironmentError("select", fmt::format("BLIS kernels {}={}", kVariable, wish),
                           fmt::format("use one of {}or unset it", known));
  }
  const auto best = std::ranges::find_if(kAll.rbegin(), kAll.rend(), is_usable);
  return best == kAll.rend() ? GemmKernels::generic : *best;
}

void select_gemm_kernels(GemmKernels kernels) {
  const Family& family = family_of(kernels);
  const std::lock_guard lock(selecting);
  const int before = selected.load();
  if (before == static_cast<int>(kernels)) return;
  if (before != kNotSelected)
    throw EnvironmentError("select", fmt::format("BLIS kernels {}", family.name),
                           fmt::format("this process already uses {}", name_of(static_cast<GemmKernels>(before))));
  if (!is_built(kernels))
    throw EnvironmentError("select", fmt::format("BLIS kernels {}", family.name),
                           "this BLIS was built without them; its configuration x86_64 has generic, haswell and skx, "
                           "arm64 generic and cortexa57");
  if (family.needs > usable_instructions())
    throw EnvironmentError("select", fmt::format("BLIS kernels {}", family.name),
                           fmt::format("they need {}, and this processor has {}{}", cleave::name_of(family.needs),
                                       cleave::name_of(usable_instructions()),
                                       instructions_are_hidden() ? " (CLEAVE_INSTRUCTIONS hides more)" : ""));
  ::setenv(kVariable, std::to_string(static_cast<int>(family.arch)).c_str(), 1);
  bli_init();  // must come before the query, which otherwise aborts
  if (const arch_t got = bli_arch_query_id(); got != family.arch)
    throw EnvironmentError("select", fmt::format("BLIS kernels {}", family.name),
                           fmt::format("BLIS uses {}", bli_arch_string(got)));
  selected.store(static_cast<int>(kernels));
}

GemmKernels selected_gemm_kernels() {
  if (selected.load(std::memory_order_acquire) == kNotSelected) select_gemm_kernels(best_gemm_kernels());
  return static_cast<GemmKernels>(selected.load());
}

std::string gemm_library() {
  const char* threading =
      bli_info_get_enable_openmp() != 0 ? "openmp" : (bli_info_get_enable_pthreads() != 0 ? "pthreads" : "serial");
  return fmt::format("BLIS {} ({})", bli_info_get_version_str(), threading);
}

}  // namespace cleave::kernels
