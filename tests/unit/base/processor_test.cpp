// What CLEAVE_INSTRUCTIONS hides, and that nobody is promised what the processor lacks.
#include "cleave/base/processor.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "cleave/base/error.hpp"

namespace cleave {
namespace {

// The variable is read once, so each case has a process of its own.
void expect_with(const char* wish, const std::function<bool()>& body) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("CLEAVE_INSTRUCTIONS", wish, 1);
        std::_Exit(body() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "")
      << wish;
}

bool is_refused() {
  try {
    (void)usable_instructions();
  } catch (const EnvironmentError&) { return true; }
  return false;
}

TEST(Processor, NamesAndParsesEveryLevel) {
  for (const Instructions level : {Instructions::baseline, Instructions::avx2, Instructions::avx512})
    EXPECT_EQ(parse_instructions(name_of(level)), level);
  EXPECT_EQ(parse_instructions("mmx"), std::nullopt);
}

TEST(Processor, TheVariableHidesAndNeverAdds) {
  expect_with("", [] { return usable_instructions() == processor_instructions() && !instructions_are_hidden(); });
  for (const Instructions level : {Instructions::baseline, Instructions::avx2, Instructions::avx512}) {
    const std::string name(name_of(level));
    if (level <= processor_instructions())
      expect_with(name.c_str(), [level] {
        return usable_instructions() == level && instructions_are_hidden() == (level < processor_instructions());
      });
    else
      expect_with(name.c_str(), is_refused);
  }
  expect_with("sse9", is_refused);
}

TEST(Processor, ATestHidesForAWhile) {
  const Instructions before = usable_instructions();
  {
    const HideInstructions hide(Instructions::baseline);
    EXPECT_EQ(usable_instructions(), Instructions::baseline);
    EXPECT_EQ(levels_to_try().size(), 1U);
    EXPECT_THROW(HideInstructions{Instructions::avx512}, Bug);
  }
  EXPECT_EQ(usable_instructions(), before);
  EXPECT_EQ(levels_to_try().back(), before);
}

}  // namespace
}  // namespace cleave
