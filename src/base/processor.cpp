// CPUID is asked once, and the environment once; a test may lower the answer meanwhile.
#include "cleave/base/processor.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdlib>

#include "cleave/base/error.hpp"

namespace cleave {

namespace {

constexpr const char* kVariable = "CLEAVE_INSTRUCTIONS";
constexpr std::array<std::string_view, 3> kNames = {"baseline", "avx2", "avx512"};

Instructions ask_processor() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2")))
    return Instructions::baseline;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return wide ? Instructions::avx512 : Instructions::avx2;
#else
  return Instructions::baseline;
#endif
}

Instructions ask_environment() {
  const Instructions most = processor_instructions();
  const char* const wish = std::getenv(kVariable);  // NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile
  if (wish == nullptr || *wish == '\0') return most;
  const std::optional<Instructions> level = parse_instructions(wish);
  const std::string object = fmt::format("instructions {}={}", kVariable, wish);
  if (!level) throw EnvironmentError("select", object, "use baseline, avx2 or avx512, or unset it");
  if (*level > most) throw EnvironmentError("select", object, fmt::format("this processor has {}", name_of(most)));
  return *level;
}

std::atomic<Instructions>& usable() {
  static std::atomic<Instructions> level{ask_environment()};
  return level;
}

}  // namespace

std::string_view name_of(Instructions instructions) { return kNames.at(static_cast<std::size_t>(instructions)); }

std::optional<Instructions> parse_instructions(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<Instructions>(i);
  return std::nullopt;
}

Instructions processor_instructions() {
  static const Instructions answer = ask_processor();
  return answer;
}

Instructions usable_instructions() { return usable().load(std::memory_order_relaxed); }

bool instructions_are_hidden() { return usable_instructions() < processor_instructions(); }

std::vector<Instructions> levels_to_try() {
  std::vector<Instructions> levels;
  for (int level = 0; level <= static_cast<int>(usable_instructions()); ++level)
    levels.push_back(static_cast<Instructions>(level));
  return levels;
}

HideInstructions::HideInstructions(Instructions most) : before_(usable_instructions()) {
  CLEAVE_ASSERT(most <= before_, "{} where {} is the most", name_of(most), name_of(before_));
  usable().store(most);
}

HideInstructions::~HideInstructions() { usable().store(before_); }

}  // namespace cleave
