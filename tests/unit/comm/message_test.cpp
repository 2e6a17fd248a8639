// The codec: what is encoded is decoded alike, and no damage to a frame gets past it.
#include "cleave/comm/message.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "cleave/base/random.hpp"
#include "cleave/comm/handshake.hpp"
#include "frames.hpp"

namespace cleave::comm {
namespace {

Header gemm_task(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t blocks, std::int64_t first, DType wire) {
  Header header;
  header.kind = Kind::task;
  header.sequence = 9;
  header.tasklet = TaskletId(7);
  header.device = DeviceId(3);
  header.op = OpId(12);
  header.work = Work::gemm;
  header.wire = wire;
  header.gemm = {m, n, k, blocks, first};
  header.output = header.gemm.whole_depth() ? wire : partial_sum_type(wire);
  header.panels = 2;
  return header;
}

Header attention_task(Work work, DType wire) {
  Header header = gemm_task(1, 1, 1, 1, 0, wire);
  header.work = work;
  header.gemm = {};
  header.attention = {.pairs = 3, .seq = 5, .head_dim = 4, .queries = 2};
  return header;
}

Header stored_by_columns(Header header) {
  header.a_by_columns = header.gemm.m > 2;
  header.b_by_columns = true;
  return header;
}

Header part_of(Header header, std::int64_t first, std::int64_t count, PartOf of = PartOf::rows) {
  header.part = {.of = of, .first = first, .count = count};
  return header;
}

// Of a product of three K blocks, A by columns, as weight gradients are.
Header depth_panel(std::int64_t first, std::int64_t count, DType wire = DType::f32) {
  Header header = gemm_task(5, 6, 2 * kBlockK + 10, 3, 0, wire);
  header.a_by_columns = true;
  return part_of(header, first, count, PartOf::k_blocks);
}

std::vector<Header> tasks() {
  return {gemm_task(5, 6, 7, 1, 0, DType::f32),
          stored_by_columns(gemm_task(5, 6, 7, 1, 0, DType::f32)),
          stored_by_columns(gemm_task(2, 2, kBlockK + 10, 2, 0, DType::bf16)),
          gemm_task(5, 6, 7, 1, 0, DType::bf16),
          gemm_task(3, 2, kBlockK, 3, 1, DType::f16),
          gemm_task(3, 2, 10, 3, 2, DType::f32),
          part_of(gemm_task(5, 6, 7, 1, 0, DType::f32), 0, 3),
          part_of(gemm_task(5, 2, kBlockK + 10, 2, 0, DType::bf16), 3, 2),
          gemm_task(2, 2, kBlockK + 10, 2, 0, DType::bf16),
          depth_panel(0, 2),
          depth_panel(2, 1, DType::bf16),
          part_of(attention_task(Work::attention_forward, DType::bf16), 0, 2, PartOf::pairs),
          part_of(attention_task(Work::attention_backward, DType::f32), 2, 1, PartOf::pairs),
          attention_task(Work::attention_forward, DType::f32),
          attention_task(Work::attention_backward, DType::f16)};
}

// Columns that are brought for tasks to come, and a task that uses them.
std::vector<Header> beside_columns() {
  Header bring = gemm_task(0, 6, kBlockK, 3, 1, DType::f16), use = gemm_task(5, 6, kBlockK, 3, 1, DType::f16);
  bring.columns = Columns::bring;
  bring.b_by_columns = true;
  use.columns = Columns::kept;
  use.brought_by = TaskletId(4);
  return {bring, use};
}

// One frame of every kind, small ones.
std::vector<Frame> one_of_each() {
  std::vector<Frame> frames;
  for (const Header& header : tasks()) {
    TaskDraft task = begin_task(header);
    fill(task);
    frames.push_back(seal(std::move(task)));
    ResultDraft result = begin_result(result_header(header));
    fill(result);
    frames.push_back(seal(std::move(result)));
  }
  frames.push_back(encode(Hello{.pid = 1234, .host = "node", .version = "1"}));
  Welcome welcome;
  welcome.gemm_kernels = "haswell";
  welcome.devices.push_back({DeviceId(4), Bytes(1 << 20)});
  welcome.step = std::string(300, 'x');
  frames.push_back(encode(welcome));
  frames.push_back(encode_ready());
  frames.push_back(encode_refusal("no"));
  frames.push_back(encode_refused(TaskletId(1), DeviceId(2), Reason::memory, "needs 3 of 2"));
  frames.push_back(encode_ping(5));
  frames.push_back(encode_pong(5));
  frames.push_back(encode_goodbye());
  frames.push_back(encode_farewell());
  frames.push_back(encode_release(TaskletId(4), DeviceId(2)));
  for (const Header& header : beside_columns()) {
    TaskDraft task = begin_task(header);
    fill(task);
    frames.push_back(seal(std::move(task)));
  }
  return frames;
}

TEST(Message, TaskRoundTrip) {
  std::vector<Header> all = tasks();
  for (const Header& header : beside_columns()) all.push_back(header);
  for (const Header& header : all) {
    TaskDraft draft = begin_task(header);
    fill(draft);
    const std::vector<std::byte> b(draft.operands[1].begin(), draft.operands[1].end());
    const Frame frame = seal(std::move(draft));
    EXPECT_EQ(frame.size(), frame_bytes(header));
    const auto task = decode_task(frame);
    ASSERT_TRUE(task);
    Header expected = header;
    expected.payload_bytes = frame.size() - kHeaderBytes;
    EXPECT_EQ(task->header, expected);
    EXPECT_TRUE(std::equal(b.begin(), b.end(), task->operands[1].begin(), task->operands[1].end()));
    for (const auto& operand : task->operands) {
      if (!operand.empty()) { EXPECT_EQ(reinterpret_cast<std::uintptr_t>(operand.data()) % kAlignment, 0U); }
    }
    EXPECT_EQ(decode_result(frame).fault(), Fault::kind);
  }
}

TEST(Message, SizesOfSections) {
  const Header header = gemm_task(3, 2, kBlockK, 3, 1, DType::f16);
  TaskDraft draft = begin_task(header);
  EXPECT_EQ(draft.operands[0].size(), 3U * kBlockK * 2);
  EXPECT_EQ(draft.operands[1].size(), 2U * kBlockK * 2);
  EXPECT_EQ(draft.row_exponents.size(), 3U);
  EXPECT_EQ(draft.column_exponents.size(), 2U);
  ResultDraft result = begin_result(result_header(header));
  EXPECT_EQ(result.outputs[0].size(), 3U * 2 * 4);  // 32-bit partial sums

  const Header backward = attention_task(Work::attention_backward, DType::f16);
  draft = begin_task(backward);
  EXPECT_EQ(draft.operands[0].size(), 3U * 2 * 5 * 4 * 2);
  EXPECT_EQ(draft.operands[1].size(), 3U * 5 * 4 * 2);
  EXPECT_EQ(draft.operands[3].size(), draft.operands[0].size());
  EXPECT_TRUE(draft.row_exponents.empty());
  result = begin_result(result_header(backward));
  EXPECT_EQ(result.outputs[0].size(), draft.operands[0].size());
  EXPECT_EQ(result.outputs[2].size(), draft.operands[2].size());
}

TEST(Message, ResultTiming) {
  const Header header = gemm_task(5, 6, 7, 1, 0, DType::f32);
  ResultDraft draft = begin_result(result_header(header));
  fill(draft);
  set_timing(draft, Seconds(1.5), Seconds(2.5));
  const Frame frame = seal(std::move(draft));
  const auto result = decode_result(frame);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->header.compute, Seconds(1.5));
  EXPECT_EQ(result->header.computed, Seconds(2.5));
  EXPECT_EQ(result->header.tasklet, header.tasklet);
}

TEST(Message, HandshakeRoundTrip) {
  const Hello hello{.pid = 77, .host = "somewhere", .version = "0.1.0"};
  EXPECT_EQ(*decode_hello(encode(hello)), hello);

  Welcome welcome;
  welcome.wire = DType::bf16;
  welcome.gemm_kernels = "skx";
  for (int i = 0; i < 3000; ++i) welcome.devices.push_back({DeviceId(i), Bytes(i)});
  const auto back = decode_welcome(encode(welcome));
  ASSERT_TRUE(back);
  EXPECT_EQ(*back, welcome);
  EXPECT_EQ(decode_hello(encode(welcome)).fault(), Fault::kind);
}

TEST(Message, TextsAreCut) {
  const Frame frame = encode_refusal(std::string(2 * kMaxText, 'x'));
  ASSERT_TRUE(decode(frame));
  EXPECT_EQ(text_of(frame), std::string(kMaxText, 'x'));
  EXPECT_EQ(text_of(encode_refused(TaskletId(1), DeviceId(2), Reason::memory, "why")), "why");
}

// They end up in a log and on a terminal.
TEST(Message, TextsOfRanksAreOneLineWithoutControls) {
  const std::string text = "no\n\x1b[2Jcleave: all is well", shown = "no\\n\\x1b[2Jcleave: all is well";
  EXPECT_EQ(text_of(encode_refusal(text)), shown);
  EXPECT_EQ(text_of(encode_refused(TaskletId(1), DeviceId(2), Reason::memory, text)), shown);
  const auto hello = decode_hello(encode(Hello{.pid = 1, .host = text, .version = text}));
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->host, shown);
  EXPECT_EQ(hello->version, shown);
}

TEST(Message, EveryFlippedBitIsNoticed) {
  for (Frame& frame : one_of_each()) {
    const std::int64_t bits = std::min<std::int64_t>(frame.size(), 600) * 8;
    for (std::int64_t bit = 0; bit < bits; ++bit) {
      frame.data()[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      EXPECT_FALSE(decode(frame)) << "bit " << bit;
      frame.data()[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    }
    EXPECT_TRUE(decode(frame));
  }
}

TEST(Message, EveryTruncationIsNoticed) {
  for (const Frame& frame : one_of_each()) {
    for (std::int64_t size = 0; size < std::min<std::int64_t>(frame.size(), 600); ++size) {
      Frame cut(size);
      if (size > 0) std::memcpy(cut.data(), frame.data(), static_cast<std::size_t>(size));
      EXPECT_FALSE(decode(cut)) << size;
    }
  }
}

// Headers with random bytes in random fields, and a right checksum: refused, or consistent with what they say.
TEST(Message, RandomFieldsAreRefusedOrConsistent) {
  const Random random(1, Purpose::test);
  std::uint64_t draw = 0;
  int accepted = 0;
  for (const Frame& original : one_of_each()) {
    for (int round = 0; round < 3000; ++round) {
      ResultDraft draft;
      draft.frame = original.copy();
      for (std::uint64_t changes = 1 + random.below(draw++, 3); changes > 0; --changes) {
        const auto limit = static_cast<std::uint64_t>(std::min<std::int64_t>(original.size(), 200));
        const std::uint64_t at = random.below(draw++, limit);
        draft.frame.data()[at] = static_cast<std::byte>(random.bits(draw++));
      }
      const Frame frame = seal(std::move(draft));
      const auto header = decode(frame);
      if (!header) continue;
      ++accepted;
      EXPECT_EQ(header->payload_bytes + kHeaderBytes, frame.size());
      if (header->kind == Kind::task) {
        const auto task = decode_task(frame);
        ASSERT_TRUE(task);
        for (const auto& operand : task->operands) {
          if (!operand.empty()) { EXPECT_LE(operand.data() + operand.size(), frame.data() + frame.size()); }
        }
      } else if (header->kind == Kind::welcome) {
        (void)decode_welcome(frame);
      } else if (header->kind == Kind::hello) {
        (void)decode_hello(frame);
      }
    }
  }
  EXPECT_GT(accepted, 100);  // changes of ids and payloads are legal
}

TEST(Message, OnlyTasksOfProductsTellTheirStorage) {
  ResultDraft result = begin_result(result_header(gemm_task(5, 6, 7, 1, 0, DType::f32)));
  fill(result);
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(seal(std::move(result)), 13, 1)), Fault::field);
  TaskDraft attention = begin_task(attention_task(Work::attention_forward, DType::f32));
  fill(attention);
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(seal(std::move(attention)), 13, 2)), Fault::field);
}

Header in_place(Header header) {
  header.in_place = true;
  return header;
}

// A task whose operands are at `places`, in a reach of so many bytes.
Frame placed(const Header& header, std::vector<OperandPlace> places, std::span<const std::byte> reach) {
  TaskDraft draft = begin_task(in_place(header));
  EXPECT_EQ(draft.places.size(), places.size());
  std::copy(places.begin(), places.end(), draft.places.begin());
  Frame frame = seal(std::move(draft));
  frame.set_reach(reach, nullptr);
  return frame;
}

TEST(Message, OperandsInPlace) {
  const std::vector<std::byte> memory(1000);
  const Header header = gemm_task(3, 2, 10, 3, 2, DType::f32);  // A 3 x 10, B 10 x 2
  const Frame frame = placed(header, {{40, 12}, {200, 2}}, memory);
  EXPECT_EQ(frame.size(), frame_bytes(in_place(header)));
  const auto task = decode_task(frame);
  ASSERT_TRUE(task);
  EXPECT_TRUE(task->header.in_place);
  EXPECT_TRUE(task->operands[0].empty() && task->operands[1].empty());
  EXPECT_EQ(task->places[0], (OperandPlace{40, 12}));
  EXPECT_EQ(task->places[1], (OperandPlace{200, 2}));
  EXPECT_EQ(task->reach.data(), memory.data());
  EXPECT_EQ(task->row_exponents.size(), 3U);

  // One place for each head: 3 x 2 of Q, 3 of K, 3 of V, and 6 of dO.
  const auto heads = [&](Work work) { return begin_task(in_place(attention_task(work, DType::f32))).places.size(); };
  EXPECT_EQ(heads(Work::attention_forward), 12U);
  EXPECT_EQ(heads(Work::attention_backward), 18U);
}

TEST(Message, PlacesBeyondTheReachAreRefused) {
  const std::vector<std::byte> memory(4 * 100);
  const Header header = gemm_task(3, 2, 10, 1, 0, DType::f32);
  const OperandPlace b{0, 2};
  // The last row of A ends with the memory.
  EXPECT_TRUE(decode(placed(header, {{4 * 66, 12}, b}, memory)));
  EXPECT_TRUE(decode(placed(header, {{0, 45}, b}, memory)));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(),
                         kLeast = std::numeric_limits<std::int64_t>::min();
  for (const OperandPlace a : std::initializer_list<OperandPlace>{{4 * 67, 12},
                                                                  {4 * 66, 13},
                                                                  {4, 45},
                                                                  {0, 46},
                                                                  {2, 12},
                                                                  {-4, 12},
                                                                  {4 * 100, 10},
                                                                  {4 * 101, 10},
                                                                  {0, 9},
                                                                  {0, 0},
                                                                  {0, -12},
                                                                  {0, kMost},
                                                                  {0, kLeast},
                                                                  {kMost - 3, 12},
                                                                  {kLeast, 12}}) {
    EXPECT_EQ(fault_of(placed(header, {a, b}, memory)), Fault::geometry) << a.offset << " " << a.ld;
    EXPECT_EQ(fault_of(placed(header, {b, a}, memory)), Fault::geometry) << a.offset << " " << a.ld;
  }
  // Stored by columns A has 10 rows of 3.
  Header turned = header;
  turned.a_by_columns = true;
  EXPECT_TRUE(decode(placed(turned, {{4 * 70, 3}, b}, memory)));
  EXPECT_FALSE(decode(placed(turned, {{4 * 71, 3}, b}, memory)));
  // No memory but that of a neighbour may be read.
  EXPECT_EQ(fault_of(placed(header, {{0, 12}, b}, {})), Fault::geometry);

  const Header attention = attention_task(Work::attention_forward, DType::f32);  // heads of 5 x 4
  std::vector<OperandPlace> places(12, {0, 24});
  EXPECT_TRUE(decode(placed(attention, places, memory)));
  places.back() = {4 * 3, 24};  // 3 + 4 * 24 + 4 > 100
  EXPECT_EQ(fault_of(placed(attention, places, memory)), Fault::geometry);
}

TEST(Message, OnlyTasksInFullPrecisionAreInPlace) {
  EXPECT_EQ(frame_bytes(in_place(gemm_task(5, 6, 7, 1, 0, DType::bf16))), -1);
  EXPECT_EQ(frame_bytes(in_place(attention_task(Work::attention_forward, DType::f16))), -1);
  EXPECT_EQ(frame_bytes(in_place(result_header(gemm_task(5, 6, 7, 1, 0, DType::f32)))), -1);
}

TEST(Message, PanelsBringTheirRowsAndTheFirstOneB) {
  const Header whole = gemm_task(5, 2, kBlockK, 3, 1, DType::f16);
  const TaskDraft first = begin_task(part_of(whole, 0, 3)), second = begin_task(part_of(whole, 3, 2));
  EXPECT_EQ(first.operands[0].size(), 3U * kBlockK * 2);
  EXPECT_EQ(first.operands[1].size(), 2U * kBlockK * 2);
  EXPECT_EQ(first.row_exponents.size(), 3U);
  EXPECT_EQ(first.column_exponents.size(), 2U);
  EXPECT_EQ(second.operands[0].size(), 2U * kBlockK * 2);
  EXPECT_TRUE(second.operands[1].empty());
  EXPECT_EQ(second.row_exponents.size(), 2U);
  EXPECT_TRUE(second.column_exponents.empty());
  const Header answer = result_header(second.header);
  EXPECT_EQ(answer.part, second.header.part);
  EXPECT_EQ(begin_result(answer).outputs[0].size(), 2U * 2 * 4);  // 32-bit partial sums
}

TEST(Message, PanelsOfKBlocksBringTheirDepthOfBoth) {
  const TaskDraft first = begin_task(depth_panel(0, 2)), last = begin_task(depth_panel(2, 1));
  EXPECT_EQ(first.operands[0].size(), 5U * 2 * kBlockK * 4);
  EXPECT_EQ(first.operands[1].size(), 6U * 2 * kBlockK * 4);
  EXPECT_EQ(first.row_exponents.size(), 5U);
  EXPECT_EQ(first.column_exponents.size(), 6U);
  EXPECT_EQ(last.operands[0].size(), 5U * 10 * 4);
  EXPECT_EQ(last.operands[1].size(), 6U * 10 * 4);
  EXPECT_TRUE(last.row_exponents.empty() && last.column_exponents.empty());
  EXPECT_EQ(frame_bytes(result_header(first.header)), kHeaderBytes);  // it says that it was multiplied, and no more
}

TEST(Message, PanelsOfPairsAreAnsweredByTheirs) {
  const Header whole = attention_task(Work::attention_backward, DType::f16);
  const TaskDraft panel = begin_task(part_of(whole, 1, 2, PartOf::pairs));
  EXPECT_EQ(panel.operands[0].size(), 2U * 2 * 5 * 4 * 2);
  EXPECT_EQ(panel.operands[3].size(), panel.operands[0].size());
  const ResultDraft answer = begin_result(result_header(panel.header));
  EXPECT_EQ(answer.header.part, panel.header.part);
  EXPECT_EQ(answer.outputs[0].size(), panel.operands[0].size());
  EXPECT_EQ(answer.outputs[2].size(), 2U * 5 * 4 * 2);
}

TEST(Message, PanelsAreOfWhatLiesInRows) {
  const Header whole = gemm_task(5, 6, 7, 1, 0, DType::f32);
  const std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const Header streamed = depth_panel(0, 1), pairs = attention_task(Work::attention_forward, DType::f32);
  for (const auto& [first, count] : std::initializer_list<std::pair<std::int64_t, std::int64_t>>{
           {0, 5}, {0, 6}, {3, 3}, {5, 1}, {2, 0}, {-1, 2}, {1, -1}, {most, most}, {1, most}}) {
    EXPECT_EQ(frame_bytes(part_of(whole, first, count)), -1) << first << " " << count;
    EXPECT_EQ(frame_bytes(part_of(streamed, first, count, PartOf::k_blocks)), -1) << first << " " << count;
    EXPECT_EQ(frame_bytes(part_of(pairs, first, count, PartOf::pairs)), -1) << first << " " << count;
  }
  EXPECT_GT(frame_bytes(part_of(whole, 4, 1)), 0);
  EXPECT_EQ(frame_bytes(part_of(stored_by_columns(whole), 0, 2)), -1);
  EXPECT_EQ(frame_bytes(part_of(in_place(whole), 0, 2)), -1);
  EXPECT_GT(frame_bytes(part_of(pairs, 0, 1, PartOf::pairs)), 0);
  EXPECT_EQ(frame_bytes(part_of(in_place(pairs), 0, 1, PartOf::pairs)), -1);
  EXPECT_EQ(frame_bytes(part_of(pairs, 0, 1)), -1);
  EXPECT_EQ(frame_bytes(part_of(pairs, 0, 1, PartOf::k_blocks)), -1);
  EXPECT_EQ(frame_bytes(part_of(whole, 0, 1, PartOf::pairs)), -1);
  EXPECT_GT(frame_bytes(streamed), 0);
  for (const bool a_by_columns : {false, true}) {
    Header stored = streamed;
    stored.a_by_columns = a_by_columns;
    stored.b_by_columns = a_by_columns;
    EXPECT_EQ(frame_bytes(stored), -1);
  }
  Header kept = streamed;
  kept.columns = Columns::kept;
  kept.brought_by = TaskletId(4);
  EXPECT_EQ(frame_bytes(kept), -1);
  EXPECT_EQ(frame_bytes(part_of(beside_columns()[0], 0, 1)), -1);
  for (const auto of : {PartOf::none, PartOf{4}}) EXPECT_EQ(frame_bytes(part_of(whole, 0, 1, of)), -1);
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(encode_ping(5), 112, 1)), Fault::field);
  EXPECT_EQ(fault_of(with_field<std::int32_t>(encode_ping(5), 100, 1)), Fault::field);
}

TEST(Message, TasksWhoseResultFitsNoFrameAreRefused) {
  const std::int64_t wide = (std::int64_t{1} << 30) + 3;
  EXPECT_EQ(frame_bytes(part_of(gemm_task(2, wide, 4, 1, 0, DType::bf16), 1, 1)), -1);
  EXPECT_EQ(frame_bytes(in_place(gemm_task(1, wide, 4, 1, 0, DType::f32))), -1);
  Header deep = gemm_task(1 << 15, 1 << 15, kBlockK * 3, 3, 0, DType::f32);  // panels of 200 MB, a result of 4 GiB
  deep.a_by_columns = true;
  EXPECT_EQ(frame_bytes(part_of(deep, 1, 1, PartOf::k_blocks)), -1);
  const Header narrow = part_of(gemm_task(2, 3, 4, 1, 0, DType::bf16), 1, 1);
  TaskDraft draft = begin_task(narrow);
  fill(draft);
  const Frame frame = seal(std::move(draft));
  ASSERT_TRUE(decode(frame));
  EXPECT_EQ(fault_of(with_field<std::int64_t>(frame, 56, wide)), Fault::geometry);
}

TEST(Message, ColumnsComeOnce) {
  const std::int64_t element = size_of(DType::f16);
  const std::vector<Header> headers = beside_columns();
  TaskDraft bring = begin_task(headers[0]), use = begin_task(headers[1]);
  EXPECT_TRUE(bring.operands[0].empty());
  EXPECT_TRUE(bring.row_exponents.empty());
  EXPECT_EQ(std::ssize(bring.operands[1]), 6 * kBlockK * element);
  EXPECT_EQ(bring.column_exponents.size(), 6U);
  EXPECT_EQ(std::ssize(use.operands[0]), 5 * kBlockK * element);
  EXPECT_EQ(use.row_exponents.size(), 5U);
  EXPECT_TRUE(use.operands[1].empty());
  EXPECT_TRUE(use.column_exponents.empty());
  const TaskDraft rows = begin_task(part_of(headers[1], 0, 2));
  EXPECT_EQ(std::ssize(rows.operands[0]), 2 * kBlockK * element);
  EXPECT_EQ(rows.row_exponents.size(), 2U);
  EXPECT_TRUE(rows.operands[1].empty() && rows.column_exponents.empty());
  fill(use);
  const Frame task = seal(std::move(use));
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, 15, 3)), Fault::field);
  EXPECT_EQ(fault_of(with_field<std::int64_t>(task, 104, -1)), Fault::field);
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, 13, 2)), Fault::field);  // how a B is stored that does not come
  EXPECT_FALSE(decode(with_field<std::uint8_t>(task, 15, 0)));
  EXPECT_FALSE(decode(with_field<std::uint8_t>(task, 15, 1)));
  fill(bring);
  EXPECT_EQ(fault_of(with_field<std::int64_t>(seal(std::move(bring)), 48, 1)), Fault::geometry);
}

TEST(Message, HostileFields) {
  TaskDraft draft = begin_task(gemm_task(3, 2, 10, 3, 2, DType::f32));
  fill(draft);
  const Frame task = seal(std::move(draft));
  ASSERT_TRUE(decode(task));
  EXPECT_EQ(fault_of(with_field<std::uint32_t>(task, 0, 0)), Fault::magic);
  EXPECT_EQ(fault_of(with_field<std::uint16_t>(task, 4, kWireVersion + 1)), Fault::version);
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, 6, 0)), Fault::kind);
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, 6, 200)), Fault::kind);
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, 7, 100)), Fault::field);             // lie
  EXPECT_EQ(fault_of(with_field<std::uint32_t>(task, 8, 0xffffffff)), Fault::geometry);  // payload
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, 12, 4)), Fault::field);              // panel order
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, 13, 4)), Fault::geometry);           // in place: another length
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, 13, 8)), Fault::field);              // storage
  EXPECT_TRUE(decode(with_field<std::uint8_t>(task, 13, 3)));
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, 14, 1)), Fault::field);   // reserved
  EXPECT_EQ(fault_of(with_field<std::int64_t>(task, 24, -1)), Fault::field);  // tasklet
  EXPECT_EQ(fault_of(with_field<std::int64_t>(task, 32, -5)), Fault::field);  // device
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, 44, 5)), Fault::field);   // work
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, 45, 3)), Fault::field);   // wire f64
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, 46, 4)), Fault::field);   // i32 for fp32
  EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, 47, 1)), Fault::field);   // reason
  for (const std::size_t at : {48U, 56U, 64U}) {                              // m, n, k
    for (const std::int64_t value :
         {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 31, std::int64_t{1} << 62,
          std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
      EXPECT_EQ(fault_of(with_field(task, at, value)), Fault::geometry);
    }
  }
  EXPECT_EQ(fault_of(with_field<std::int64_t>(task, 48, (std::int64_t{1} << 31) - 1)), Fault::geometry);
  EXPECT_EQ(fault_of(with_field<std::int32_t>(task, 72, 0)), Fault::geometry);  // blocks
  EXPECT_EQ(fault_of(with_field<std::int32_t>(task, 76, 3)), Fault::geometry);  // first block
  EXPECT_EQ(fault_of(with_field<std::int32_t>(task, 76, 1)), Fault::geometry);  // a short block inside
  for (const std::size_t at : {80U, 88U}) EXPECT_EQ(fault_of(with_field(task, at, 1.0)), Fault::field);  // of a result
  for (const std::size_t at : {104U, 115U}) {                                                            // unused
    EXPECT_EQ(fault_of(with_field<std::uint8_t>(task, at, 1)), Fault::field);
  }
  EXPECT_EQ(fault_of(with_field<std::uint32_t>(task, 124, 0)), Fault::field);  // panels
  EXPECT_EQ(fault_of(with_field<std::uint32_t>(task, 124, 0xffffffff)), Fault::field);

  ResultDraft answer = begin_result(result_header(gemm_task(3, 2, 10, 3, 2, DType::f32)));
  fill(answer);
  const Frame result = seal(std::move(answer));
  for (const std::size_t at : {80U, 88U}) {  // times
    EXPECT_TRUE(decode(with_field(result, at, 1.0)));
    for (const double value :
         {-1.0, 1e10, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      EXPECT_EQ(fault_of(with_field(result, at, value)), Fault::field);
    }
  }
}

TEST(Message, TooLargeIsRefusedBeforeMemoryIsTaken) {
  EXPECT_EQ(frame_bytes(gemm_task(1 << 20, 1 << 20, 1 << 20, k_blocks(1 << 20), 0, DType::f32)), -1);
  EXPECT_EQ(frame_bytes(gemm_task(1 << 16, 16, 1 << 13, k_blocks(1 << 13), 0, DType::f32)), -1);
  EXPECT_GT(frame_bytes(gemm_task(1 << 14, 1 << 14, 768, 1, 0, DType::f32)), 0);
}

// The two examples of docs/wire_format.md, byte for byte: a change of either is a change of the format.
TEST(Message, BytesAreAsDocumented) {
  const auto hex = [](const Frame& frame, std::int64_t begin, std::int64_t end) {
    std::string text;
    for (std::int64_t i = begin; i < end; ++i) text += fmt::format("{:02x}", static_cast<unsigned>(frame.data()[i]));
    return text;
  };
  const Frame ping = encode_ping(5);
  EXPECT_EQ(hex(ping, 0, 48), "434c4d46090008000000000000000000db4b785c46e61417" + std::string(40, 'f') + "00000000");
  EXPECT_EQ(hex(ping, 48, 128), std::string(144, '0') + "0500000000000000");

  Header header = gemm_task(2, 1, 3, 1, 0, DType::f32);
  header.sequence = 0;
  header.panels = 1;
  TaskDraft draft = begin_task(header);
  const std::array<float, 6> a = {1, 2, 3, 4, 5, 6};
  const std::array<float, 3> b = {1, 0, -1};
  std::memcpy(draft.operands[0].data(), a.data(), sizeof a);
  std::memcpy(draft.operands[1].data(), b.data(), sizeof b);
  const Frame task = seal(std::move(draft));
  ASSERT_EQ(task.size(), 0xcc);
  EXPECT_EQ(hex(task, 0x00, 0x10), "434c4d46090005004c00000000000000");
  EXPECT_EQ(hex(task, 0x10, 0x20), "8c6534535e1792580700000000000000");
  EXPECT_EQ(hex(task, 0x20, 0x30), "03000000000000000c00000001000000");
  EXPECT_EQ(hex(task, 0x30, 0x40), "02000000000000000100000000000000");
  EXPECT_EQ(hex(task, 0x40, 0x50), "03000000000000000100000000000000");
  EXPECT_EQ(hex(task, 0x50, 0x60), std::string(32, '0'));
  EXPECT_EQ(hex(task, 0x60, 0x70), std::string(32, '0'));
  EXPECT_EQ(hex(task, 0x70, 0x80), "00000000000000000000000001000000");
  EXPECT_EQ(hex(task, 0x80, 0x98), "0000803f0000004000004040000080400000a0400000c040");
  EXPECT_EQ(hex(task, 0x98, 0xc0), std::string(80, '0'));
  EXPECT_EQ(hex(task, 0xc0, 0xcc), "0000803f00000000000080bf");
}

TEST(Message, PeekNamesADamagedTask) {
  TaskDraft draft = begin_task(gemm_task(3, 2, 10, 3, 2, DType::f32));
  fill(draft);
  Frame task = seal(std::move(draft));
  task.data()[300] ^= std::byte{1};
  EXPECT_EQ(fault_of(task), Fault::checksum);
  const auto name = peek_task(task);
  ASSERT_TRUE(name);
  EXPECT_EQ(name->tasklet, TaskletId(7));
  EXPECT_EQ(name->device, DeviceId(3));
  EXPECT_FALSE(peek_task(encode_ready()));
  EXPECT_FALSE(peek_task(Frame(10)));
}

}  // namespace
}  // namespace cleave::comm
