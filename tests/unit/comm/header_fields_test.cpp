// Fields of a header that only some messages have: where they mean nothing, and where their value means nothing, the
// frame is refused.
#include <gtest/gtest.h>

#include <utility>

#include "cleave/comm/message.hpp"
#include "frames.hpp"
#include "support/task_header.hpp"

namespace cleave::comm {
namespace {

constexpr std::size_t kAtHeaderSum = 14, kAtTasklet = 24, kAtDevice = 32, kAtFirstBlock = 76, kAtDigest = 113;

Header task_of(Work work, DType wire) {
  Header header = testing_support::task_header(work, wire);
  if (work == Work::gemm) header.gemm = {4, 3, 8, 1, 0};
  if (work == Work::attention_forward) header.attention = {.pairs = 3, .seq = 5, .head_dim = 4, .queries = 2};
  return header;
}

Frame frame_of(const Header& header) {
  TaskDraft draft = begin_task(header);
  fill(draft);
  return seal(std::move(draft));
}

// What is read where its sender keeps it.
Frame borrowed(const Frame& frame) { return Frame::borrow(frame.data(), frame.size(), nullptr, 0); }

TEST(HeaderFields, FlagsAreZeroOrOne) {
  const Frame task = frame_of(task_of(Work::gemm, DType::f32));
  ASSERT_TRUE(decode(task));
  for (const std::uint8_t value : {std::uint8_t{2}, std::uint8_t{255}}) {
    EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, kAtHeaderSum, value)), Fault::field);
    EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, kAtDigest, value)), Fault::field);
  }
}

// A sum of the header alone guards only what is read in place, and that are blocks.
TEST(HeaderFields, OnlyBlocksMayHaveTheSumOfTheirHeaderAlone) {
  TaskDraft draft = begin_task(task_of(Work::gemm, DType::f32));
  fill(draft);
  const Frame task = seal_header(std::move(draft));
  EXPECT_TRUE(decode(borrowed(task)));
  EXPECT_EQ(fault_of(task), Fault::field);
  Header asked = task_of(Work::gemm, DType::f32);
  asked.digest = true;
  const Frame digest = encode_digest(asked, SipTag{}, Seconds(1), Seconds(1));
  for (const Frame& frame : {digest.copy(), encode_ping(5), encode_goodbye()}) {
    const Frame flagged = with_field<std::uint8_t>(frame, kAtHeaderSum, 1);
    const auto header = decode_header(flagged.bytes(), flagged.size());
    ASSERT_FALSE(header);
    EXPECT_EQ(header.fault(), Fault::field);
  }
}

TEST(HeaderFields, AttentionHasNoFirstBlock) {
  const Frame task = frame_of(task_of(Work::attention_forward, DType::f32));
  ASSERT_TRUE(decode(task));
  EXPECT_EQ(fault_of(with_field<std::int32_t>(task, kAtFirstBlock, 1)), Fault::field);
}

// Only sums over tokens with fp16 on the wire come with the scale of the loss.
TEST(HeaderFields, TheLossScaleIsOfSumsOverTokensInHalfPrecision) {
  Header sums = task_of(Work::gemm, DType::f16);
  sums.gemm.seq = 8;
  for (const std::int64_t bits : {0, 1, 31}) {
    sums.gemm.loss_bits = bits;
    EXPECT_GT(frame_bytes(sums), 0) << bits;
  }
  for (const std::int64_t bits : {-1, 32, 255}) {
    sums.gemm.loss_bits = bits;
    EXPECT_EQ(frame_bytes(sums), -1) << bits;
  }
  sums.gemm.loss_bits = 1;
  Header other = sums;
  other.gemm.seq = 0;
  EXPECT_EQ(frame_bytes(other), -1);
  for (const DType wire : {DType::f32, DType::bf16}) {
    other = sums;
    other.wire = other.output = wire;
    EXPECT_EQ(frame_bytes(other), -1) << name_of(wire);
  }
}

// Columns that stay on a device are of weights: their products are no sums over tokens. They come alone, so A has no
// way to be stored.
TEST(HeaderFields, KeptColumnsAreOfWeights) {
  Header bring = task_of(Work::gemm, DType::f32), use = bring;
  bring.columns = Columns::bring;
  bring.gemm.m = 0;
  use.columns = Columns::kept;
  use.brought_by = TaskletId(4);
  ASSERT_GT(frame_bytes(bring), 0);
  ASSERT_GT(frame_bytes(use), 0);
  for (Header of_tokens : {bring, use}) {
    of_tokens.gemm.seq = 4;
    EXPECT_EQ(frame_bytes(of_tokens), -1);
  }
  bring.a_by_columns = true;
  EXPECT_EQ(frame_bytes(bring), -1);
}

TEST(HeaderFields, WhatNamesNoTaskIsNotAnswered) {
  const Frame task = frame_of(task_of(Work::gemm, DType::f32));
  ASSERT_TRUE(peek_task(task));
  for (const std::size_t at : {kAtTasklet, kAtDevice}) EXPECT_FALSE(peek_task(with_field<std::int64_t>(task, at, -1)));
}

// It clears what a device holds, and brings nothing.
TEST(HeaderFields, TheBeginOfAStepBringsNothing) {
  Header begin = task_of(Work::stage, DType::f32);
  begin.stage_task = {.errand = StageErrand::begin, .stage = 0, .owner = -1, .sequence = 0, .row = 0, .rows = 0};
  ASSERT_GT(frame_bytes(begin), 0);
  begin.stage_task.operand_bytes = 8;
  EXPECT_EQ(frame_bytes(begin), -1);
}

}  // namespace
}  // namespace cleave::comm
