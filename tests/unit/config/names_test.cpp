// Nearest names: what counts as a typing error and what does not.
#include "names.hpp"

#include <gtest/gtest.h>

namespace cleave::config {
namespace {

TEST(Names, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("setps", "steps"), 1);  // a swap counts one
  EXPECT_EQ(edit_distance("abcd", "acbd"), 1);
  EXPECT_EQ(edit_distance("ca", "abc"), 3);  // optimal string alignment, not full Damerau
}

TEST(Names, Nearest) {
  const std::vector<std::string> names{"steps", "batch", "lr", "min_lr", "warmup_steps", "weight_decay"};
  EXPECT_EQ(nearest("step", names), "steps");
  EXPECT_EQ(nearest("setps", names), "steps");
  EXPECT_EQ(nearest("Batch", names), "batch");
  EXPECT_EQ(nearest("LR", names), "lr");
  EXPECT_EQ(nearest("warmup-steps", names), "warmup_steps");
  EXPECT_EQ(nearest("wieght_deacy", names), "weight_decay");
  EXPECT_EQ(nearest("ls", names), "");
  EXPECT_EQ(nearest("momentum", names), "");
  EXPECT_EQ(nearest("", names), "");
  EXPECT_EQ(nearest("x", {}), "");
  EXPECT_EQ(nearest(std::string(100000, 's'), names), "");
}

TEST(Names, Shown) {
  EXPECT_EQ(in_quotes("plain"), "'plain'");
  EXPECT_EQ(in_quotes("a\nb\t\x01\x7f"), "'a\\nb\\t\\x01\\x7f'");
  EXPECT_EQ(in_quotes(std::string(41, 'x')), "'" + std::string(40, 'x') + "...'");
  EXPECT_EQ(in_quotes(std::string(39, 'x') + "\u00e9\u00e9"), "'" + std::string(39, 'x') + "\u00e9...'");
  EXPECT_EQ(shown_key("warmup_steps"), "warmup_steps");
  EXPECT_EQ(shown_key("a b"), "'a b'");
  EXPECT_EQ(joined({"a", "b", "c"}, " or "), "a, b or c");
  EXPECT_EQ(joined({"a"}, " or "), "a");
}

}  // namespace
}  // namespace cleave::config
