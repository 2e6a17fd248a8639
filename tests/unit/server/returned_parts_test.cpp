// What comes back in parts is put together in its order, and only if it was asked for.
#include "returned_parts.hpp"
#include "support/task_header.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

namespace cleave::server {
namespace {

using comm::MessagePart;
using comm::PartOf;
using Taken = ReturnedParts::Taken;

comm::Header task_of(comm::Work work, MessagePart first) {
  comm::Header header = testing_support::task_header(work);
  if (work == comm::Work::gemm) {
    header.gemm = {6, 2, 3 * kBlockK, 3, 0};
    header.a_by_columns = first.of == PartOf::k_blocks;
  } else {
    header.attention = {6, 2, 4, 1};
  }
  header.part = first;
  return header;
}

// Part of a result whose bytes are 0, 1, 2, ... in each output.
struct Part {
  comm::Header header;
  comm::Frame frame;
};
Part part_of(const comm::Header& task, MessagePart part) {
  comm::Header header = comm::result_header(task);
  header.part = {};
  const comm::ResultDraft whole = comm::begin_result(header);
  header.part = part;
  comm::ResultDraft draft = comm::begin_result(header);
  for (std::size_t i = 0; i < draft.outputs.size(); ++i) {
    const std::size_t before = part.of == PartOf::k_blocks ? 0 : whole.outputs[i].size() / 6 * part.first;
    for (std::size_t b = 0; b < draft.outputs[i].size(); ++b) draft.outputs[i][b] = static_cast<std::byte>(before + b);
  }
  comm::set_timing(draft, Seconds(1), Seconds(2));
  header.compute = Seconds(1);
  header.computed = Seconds(2);
  return {header, comm::seal(std::move(draft))};
}
Taken take(ReturnedParts& results, const comm::Header& task, MessagePart part) {
  const Part answer = part_of(task, part);
  return results.take(answer.frame, answer.header);
}

void expect_counting(ReturnedParts& results, const comm::Header& task, Seconds compute) {
  const comm::Frame frame = results.frame();
  const auto header = comm::decode_header(frame.bytes().first(comm::kHeaderBytes), frame.size());
  ASSERT_TRUE(header);
  EXPECT_TRUE(header->part.whole());
  EXPECT_EQ(header->compute, compute);
  const comm::ResultView view = comm::view_result(frame, *header);
  for (const auto& output : view.outputs) {
    for (std::size_t b = 0; b < output.size(); ++b) ASSERT_EQ(output[b], static_cast<std::byte>(b));
  }
  EXPECT_EQ(header->gemm, task.gemm);
}

TEST(ReturnedParts, RowsAndPairsComeInOrder) {
  for (const auto work : {comm::Work::gemm, comm::Work::attention_forward, comm::Work::attention_backward}) {
    const PartOf of = work == comm::Work::gemm ? PartOf::rows : PartOf::pairs;
    const comm::Header task = task_of(work, {of, 0, 4});
    ReturnedParts results(task);
    results.sent({of, 0, 4});
    EXPECT_EQ(take(results, task, {of, 4, 2}), Taken::missing);
    EXPECT_EQ(take(results, task, {}), Taken::missing);  // whole: not what was asked for
    EXPECT_EQ(take(results, task, {of, 0, 4}), Taken::more);
    EXPECT_EQ(take(results, task, {of, 0, 4}), Taken::again);
    EXPECT_EQ(take(results, task, {of, 4, 2}), Taken::unasked);
    results.sent({of, 4, 2});
    EXPECT_FALSE(results.has_enough());
    EXPECT_EQ(take(results, task, {of, 4, 2}), Taken::whole);
    expect_counting(results, task, Seconds(2));
  }
}

TEST(ReturnedParts, OfKBlocksTwoAreUnderWay) {
  const comm::Header task = task_of(comm::Work::gemm, {PartOf::k_blocks, 0, 1});
  for (const bool at_once : {false, true}) {
    ReturnedParts results(task);
    const auto done = [&](std::int64_t block) { return take(results, task, {PartOf::k_blocks, block, 1}); };
    results.sent({PartOf::k_blocks, 0, 1});
    EXPECT_FALSE(results.has_enough());
    EXPECT_EQ(done(1), Taken::unasked);
    results.sent({PartOf::k_blocks, 1, 1});
    EXPECT_TRUE(results.has_enough());
    EXPECT_EQ(done(1), Taken::missing);
    EXPECT_EQ(done(0), Taken::more);
    EXPECT_EQ(done(0), Taken::again);
    EXPECT_FALSE(results.has_enough());
    EXPECT_EQ(take(results, task, {PartOf::rows, 0, 3}), Taken::unasked);
    EXPECT_EQ(take(results, task, {}), Taken::unasked);
    results.sent({PartOf::k_blocks, 2, 1});
    EXPECT_EQ(done(1), Taken::more);
    EXPECT_EQ(done(2), Taken::unasked);  // the last one is answered by the result
    if (!at_once) { EXPECT_EQ(take(results, task, {PartOf::rows, 0, 4}), Taken::more); }
    EXPECT_EQ(take(results, task, at_once ? MessagePart{} : MessagePart{PartOf::rows, 4, 2}), Taken::whole);
    expect_counting(results, task, Seconds(at_once ? 3 : 4));
  }
}

TEST(ReturnedParts, OfAnotherBlock) {
  const comm::Header task = task_of(comm::Work::gemm, {PartOf::rows, 0, 4});
  ReturnedParts results(task);
  results.sent({PartOf::rows, 0, 4});
  comm::Header other = task;
  other.gemm.n = 3;
  EXPECT_EQ(take(results, other, {PartOf::rows, 0, 4}), Taken::missing);
  other = task;
  other.device = DeviceId(4);
  EXPECT_EQ(take(results, other, {PartOf::rows, 0, 4}), Taken::missing);
  EXPECT_EQ(take(results, task, {PartOf::rows, 0, 4}), Taken::more);
}

}  // namespace
}  // namespace cleave::server
