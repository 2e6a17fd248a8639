// What is held back when memory runs out, who is told, and how the program ends where nobody can be.
#include "cli/want_of_memory.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

namespace cleave::app {
namespace {

TEST(WantOfMemory, WhatIsHeldBackIsGivenOnceAndReplaced) {
  prepare_for_want_of_memory();
  EXPECT_EQ(look_after_memory(), MemoryState::enough);
  EXPECT_TRUE(give_what_was_held_back());
  EXPECT_FALSE(give_what_was_held_back());
  EXPECT_EQ(look_after_memory(), MemoryState::ran_out);
  EXPECT_EQ(look_after_memory(), MemoryState::enough);
}

TEST(WantOfMemory, NewTriesAgainOnceThenThrows) {
  prepare_for_want_of_memory();
  const std::new_handler handler = std::get_new_handler();
  ASSERT_NE(handler, nullptr);
  EXPECT_NO_THROW(handler());
  EXPECT_THROW(handler(), std::bad_alloc);
  EXPECT_EQ(look_after_memory(), MemoryState::ran_out);
}

void fail(bool memory) {
  if (memory) throw std::bad_alloc();
  throw std::runtime_error("a mistake");
}
void must_not_fail(bool memory) noexcept { fail(memory); }

TEST(WantOfMemoryDeathTest, EndsWithAMessageWhereNoExceptionMayPass) {
  const auto end = [](bool memory) {
    prepare_for_want_of_memory();
    must_not_fail(memory);
  };
  EXPECT_EXIT(end(true), ::testing::ExitedWithCode(1), "cleave: out of memory");
  EXPECT_EXIT(end(false), ::testing::ExitedWithCode(4), "bug of ours, please report it: a mistake");
}

TEST(WantOfMemoryDeathTest, LibrariesAreNeverToldTheProgramAndItsLanguageAre) {
  // Functions that no sanitizer puts its own in the place of.
  void* const of_a_library = ::dlsym(RTLD_DEFAULT, "gnu_get_libc_version");
  ASSERT_NE(of_a_library, nullptr);
  EXPECT_EXIT(end_unless_it_can_be_told(of_a_library, 77), ::testing::ExitedWithCode(1),
              "cleave: out of memory: .*libc.* asked for 77 bytes");
  end_unless_it_can_be_told(reinterpret_cast<const void*>(&must_not_fail), 77);
  void* const of_cxx = ::dlsym(RTLD_DEFAULT, "_ZSt9terminatev");
  ASSERT_NE(of_cxx, nullptr);
  end_unless_it_can_be_told(of_cxx, 77);
}

}  // namespace
}  // namespace cleave::app
