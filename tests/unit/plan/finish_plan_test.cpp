// What a partition returns is held to the size of the work.
#include "finish_plan.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "cleave/base/error.hpp"
#include "partition.hpp"

namespace cleave::plan {
namespace {

TEST(RequireWhole, FindsGapsAndWhatIsThereTwice) {
  Work work;
  work.gemm = {.m = 6, .n = 4, .k = 3};
  TaskletPlan left = whole_of(work), right = left;
  left.box.n1 = right.box.n0 = 3;
  EXPECT_NO_THROW(require_whole(work, std::vector{left, right}, Partition::grid));
  EXPECT_THROW(require_whole(work, std::vector{left}, Partition::grid), Bug);
  right.box.n0 = 2;
  EXPECT_THROW(require_whole(work, std::vector{left, right}, Partition::grid), Bug);
}

TEST(RequireWhole, FindsAGapBesideAnOverlapOfTheSameSize) {
  Work work;
  work.gemm = {.m = 6, .n = 4, .k = 3};
  TaskletPlan first = whole_of(work), second = first, third = first;
  first.box.n1 = 2;
  second.box.n0 = 2;
  second.box.m1 = 3;
  third.box.n0 = 2;
  third.box.m0 = 3;
  EXPECT_NO_THROW(require_whole(work, std::vector{third, first, second}, Partition::grid));
  EXPECT_THROW(require_whole(work, std::vector{first, second, second}, Partition::grid), Bug);
  third.box.m0 = 2;  // one row twice, and none missing
  second.box.m1 = 2;
  third.box.m1 = 5;  // the last row is missing
  EXPECT_THROW(require_whole(work, std::vector{first, second, third}, Partition::grid), Bug);
}

TEST(RequireWhole, CountsThePairsOfAttention) {
  Work work;
  work.kind = WorkKind::attention_forward;
  work.attention = {.batch = 3, .seq = 8, .n_head = 4, .n_kv_head = 2, .head_dim = 4};
  TaskletPlan first = whole_of(work), second = first;
  first.pairs.pair1 = second.pairs.pair0 = 2;
  EXPECT_NO_THROW(require_whole(work, std::vector{first, second}, Partition::rows));
  EXPECT_THROW(require_whole(work, std::vector{second}, Partition::rows), Bug);
}

}  // namespace
}  // namespace cleave::plan
