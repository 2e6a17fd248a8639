// Parts of one tasklet are cut from one block: a part of another one is not taken for the next.
#include "part_stream.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "as_server.hpp"

namespace cleave::device {
namespace {

using Found = PartStream::Found;

TEST(PartStream, APartOfAnotherBlockIsNotTheNext) {
  comm::Header first = gemm_header(60, 4, 8, 1, 0, DType::f32);
  first.part = {.of = comm::PartOf::rows, .first = 0, .count = 20};
  comm::Header second = first;
  second.part.first = 20;
  using Change = std::function<void(comm::Header&)>;
  const std::vector<Change> changes{[](comm::Header& part) { part.part.of = comm::PartOf::k_blocks; },
                                    [](comm::Header& part) { part.work = Work::attention_forward; },
                                    [](comm::Header& part) { part.gemm.n += 1; },
                                    [](comm::Header& part) { part.attention.seq = 5; },
                                    [](comm::Header& part) { part.wire = DType::bf16; },
                                    [](comm::Header& part) { part.output = DType::i64; },
                                    [](comm::Header& part) { part.device = DeviceId(1); },
                                    [](comm::Header& part) { part.b_by_columns = true; },
                                    [](comm::Header& part) { part.columns = comm::Columns::kept; },
                                    [](comm::Header& part) { part.brought_by = TaskletId(5); }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    PartStream stream;
    ASSERT_EQ(stream.take(first), Found::next);
    comm::Header other = second;
    changes[i](other);
    EXPECT_EQ(stream.take(other), Found::broken) << "change " << i;
    EXPECT_EQ(stream.take(second), Found::again) << "it is given up";
  }
  PartStream stream;
  ASSERT_EQ(stream.take(first), Found::next);
  EXPECT_EQ(stream.take(second), Found::next);
}

}  // namespace
}  // namespace cleave::device
