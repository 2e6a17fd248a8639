// Tasks of a step in stages: what is encoded is decoded alike, and no illegal field gets past the codec.
#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "cleave/comm/message.hpp"
#include "frames.hpp"

namespace cleave::comm {
namespace {

Header stage_task(StageErrand errand) {
  Header header;
  header.kind = Kind::task;
  header.sequence = 9;
  header.tasklet = TaskletId(7);
  header.device = DeviceId(3);
  header.op = OpId(12);
  header.work = Work::stage;
  header.panels = 2;
  header.stage_task = {.errand = errand,
                       .stage = 2,
                       .owner = 5,
                       .sequence = 9,
                       .row = 128,
                       .rows = 70,
                       .operand_bytes = errand == StageErrand::begin ? 0 : 77,
                       .result_bytes = 0,
                       .memory = errand == StageErrand::hold ? 12345 : 0};
  if (header.stage_task.answered()) header.stage_task.result_bytes = 33;
  return header;
}

// Tasks that nobody answers.
std::vector<Header> unanswered() {
  return {stage_task(StageErrand::begin), stage_task(StageErrand::hold), stage_task(StageErrand::take_away)};
}

TEST(StageMessage, SaysHowLongItIs) {
  const Header header = stage_task(StageErrand::backward);
  TaskDraft task = begin_task(header);
  EXPECT_EQ(task.operands[0].size(), 77U);
  fill(task);
  const Frame frame = seal(std::move(task));
  const auto view = decode_task(frame);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->header.stage_task, header.stage_task);
  EXPECT_EQ(view->operands[0].size(), 77U);
  const ResultDraft answer = begin_result(result_header(header));
  EXPECT_EQ(answer.outputs[0].size(), 33U);
  EXPECT_EQ(answer.header.stage_task, header.stage_task);
  for (const Header& alone : unanswered()) EXPECT_EQ(frame_bytes(result_header(alone)), -1);
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(frame, 112, 0)), Fault::field);     // errand
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(frame, 112, 9)), Fault::field);     // a witness's answer is digested
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(frame, 112, 11)), Fault::field);    // errand
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(frame, 112, 2)), Fault::field);     // a hold has no answer
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(frame, 113, 1)), Fault::field);     // digest
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(frame, 46, 5)), Fault::field);      // partial sums
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(frame, 15, 2)), Fault::field);      // columns
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(frame, 13, 4)), Fault::field);      // in place
  EXPECT_EQ(fault_of(with_field<std::int64_t>(frame, 48, 78)), Fault::geometry);  // operand bytes
  for (const std::size_t at : {48U, 56U}) {
    EXPECT_EQ(fault_of(with_field<std::int64_t>(frame, at, -1)), Fault::geometry);
    EXPECT_EQ(fault_of(with_field<std::int64_t>(frame, at, kMaxFrameBytes + 1)), Fault::geometry);
  }
  // An answer that would be as long as a frame may be, and its header beside.
  EXPECT_EQ(fault_of(with_field<std::int64_t>(frame, 56, kMaxFrameBytes)), Fault::geometry);
  EXPECT_TRUE(decode(with_field<std::int64_t>(frame, 56, kMaxFrameBytes - kHeaderBytes)));
  EXPECT_EQ(fault_of(with_field<std::int64_t>(frame, 64, 1)), Fault::field);  // memory, of a hold alone
  for (const std::size_t at : {72U, 96U, 100U})
    EXPECT_EQ(fault_of(with_field<std::int32_t>(frame, at, -1)), Fault::geometry);
  EXPECT_EQ(fault_of(with_field<std::int32_t>(frame, 76, -3)), Fault::geometry);   // owner
  EXPECT_TRUE(decode(with_field<std::int32_t>(frame, 76, -2)));                    // operands are kept for nobody
  EXPECT_EQ(fault_of(with_field<std::int64_t>(frame, 104, -1)), Fault::geometry);  // sequence
  TaskDraft sum = begin_task(stage_task(StageErrand::sum));
  fill(sum);
  EXPECT_EQ(fault_of(with_field<std::int32_t>(seal(std::move(sum)), 76, -2)), Fault::geometry);
  for (std::int64_t bytes = 1; bytes < frame.size(); ++bytes) {
    Frame cut(bytes);
    std::memcpy(cut.data(), frame.data(), static_cast<std::size_t>(bytes));
    EXPECT_FALSE(decode(cut)) << bytes;
  }
}

TEST(StageMessage, EveryErrandComesBack) {
  for (std::uint8_t errand = 1; errand <= 10; ++errand) {
    Header header = stage_task(StageErrand{errand});
    header.digest = header.stage_task.is_witness();
    TaskDraft task = begin_task(header);
    fill(task);
    const auto back = decode(seal(std::move(task)));
    ASSERT_TRUE(back) << int{errand};
    EXPECT_EQ(back->stage_task, header.stage_task) << int{errand};
  }
}

// A visit that is recomputed, and sums of which only a digest is wanted.
TEST(StageMessage, DigestsAreAskedForAndAnswered) {
  for (const StageErrand errand :
       {StageErrand::witness_forward, StageErrand::witness_backward, StageErrand::send_sums}) {
    Header header = stage_task(errand);
    header.digest = true;
    TaskDraft task = begin_task(header);
    fill(task);
    EXPECT_EQ(task.key.size(), sizeof(SipKey));
    const auto asked = decode(seal(std::move(task)));
    ASSERT_TRUE(asked);
    const Frame answer = encode_digest(*asked, SipTag{}, Seconds(0), Seconds(0));
    const auto header_of_answer = decode(answer);
    ASSERT_TRUE(header_of_answer);
    EXPECT_EQ(header_of_answer->kind, Kind::digest);
    EXPECT_EQ(header_of_answer->stage_task, header.stage_task);
  }
  Header other = stage_task(StageErrand::backward);
  other.digest = true;
  EXPECT_EQ(frame_bytes(other), -1);
  EXPECT_EQ(frame_bytes(stage_task(StageErrand::witness_forward)), -1) << "a whole visit's answers";
}

}  // namespace
}  // namespace cleave::comm
