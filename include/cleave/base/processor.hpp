// Which vector instructions the program uses. Every loop that has versions for several asks here at each call, so the
// one switch below hides what a processor has from all of them: the program can be tried as on a lesser machine.
//
// The switch is the environment variable CLEAVE_INSTRUCTIONS (baseline, avx2 or avx512), read once; what it hides is
// hidden from BLIS too, whose kernels are chosen by this. jobs/mpi-env.sh hands it on to the C library and Open MPI.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace cleave {

/// Each includes those before it. baseline: what the program is compiled for (x86-64, or another architecture's least);
/// avx2: AVX2, FMA, BMI and BMI2; avx512: besides, AVX-512 F, DQ, BW and VL.
enum class Instructions : int { baseline = 0, avx2 = 1, avx512 = 2 };

/// "baseline", "avx2" or "avx512".
[[nodiscard]] std::string_view name_of(Instructions instructions);
/// The level of that name; none for any other text.
[[nodiscard]] std::optional<Instructions> parse_instructions(std::string_view name);

/// The most that the processor and the operating system offer, whatever is hidden.
[[nodiscard]] Instructions processor_instructions();

/// The most that the program uses: what the processor offers, less what is hidden. May be called before main.
/// Errors: EnvironmentError where CLEAVE_INSTRUCTIONS names nothing known, or more than the processor has.
[[nodiscard]] Instructions usable_instructions();

/// Whether less is used than the processor offers. Errors: as usable_instructions.
[[nodiscard]] bool instructions_are_hidden();

/// Every level up to usable_instructions(), lowest first: a test runs its loops with each. Errors: as
/// usable_instructions().
[[nodiscard]] std::vector<Instructions> levels_to_try();

/// Limits all threads to `most` for as long as it lives. For tests of loops; BLIS's kernels, once chosen, stay.
class HideInstructions {
 public:
  /// Requires: most <= usable_instructions().
  explicit HideInstructions(Instructions most);
  HideInstructions(const HideInstructions&) = delete;
  HideInstructions& operator=(const HideInstructions&) = delete;
  ~HideInstructions();

 private:
  Instructions before_;
};

}  // namespace cleave
