// Tasklets that come to a device in panels: rows, runs of K and pairs give the bits of one message, in memory for what
// is there at once; what is missing, doubled or wrong ends one tasklet and no other.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "as_server.hpp"
#include "cleave/base/resident.hpp"
#include "cleave/kernels/gemm.hpp"

namespace cleave::device {
namespace {

// A product of three panels on device 0: A is 60 x 16 by rows, B 16 x 8.
class Panels {
 public:
  explicit Panels(std::int64_t tasklet) : tasklet_(tasklet) {}

  [[nodiscard]] comm::Frame task(comm::MessagePart rows) const {
    comm::Header header = gemm_header(60, 8, 16, 1, 0, DType::f32);
    header.tasklet = TaskletId(tasklet_);
    header.part = rows;
    comm::TaskDraft draft = comm::begin_task(header);
    pack(draft.operands[0], DType::f32, {a_.begin() + rows.first * 16, a_.begin() + (rows.first + header.rows()) * 16});
    if (rows.first == 0) pack(draft.operands[1], DType::f32, b_);
    return comm::seal(std::move(draft));
  }
  [[nodiscard]] comm::Frame panel(std::int64_t number) const {
    return task({.of = comm::PartOf::rows, .first = 20 * number, .count = 20});
  }

 private:
  std::int64_t tasklet_;
  std::vector<float> a_ = numbers(60 * 16, 1), b_ = numbers(16 * 8, 2);
};

TEST(DevicePanels, PanelsAreMultipliedAsTheyCome) {
  Server server;
  server.start(welcome({device(0)}));
  server.send(Panels(1).task({}));
  const comm::Frame frame = server.expect(Kind::result);
  const std::vector<std::byte> whole = copy_of(comm::decode_result(frame)->outputs[0]);
  std::vector<std::byte> parts;
  for (const std::int64_t number : {0, 1, 2}) {
    server.send(Panels(2).panel(number));  // each is answered before the next one is sent
    const comm::Frame part = server.expect(Kind::result);
    const auto result = comm::decode_result(part);
    EXPECT_EQ(result->header.part, (comm::MessagePart{.of = comm::PartOf::rows, .first = 20 * number, .count = 20}));
    parts.insert(parts.end(), result->outputs[0].begin(), result->outputs[0].end());
  }
  EXPECT_EQ(parts, whole);
  server.stop();
}

// What is doubled is passed over; where a panel is missing, its tasklet is given up once, and others go on.
TEST(DevicePanels, PanelsThatAreMissingOrDoubled) {
  Server server;
  server.start(welcome({device(0)}));
  const auto expect_refused = [&](std::int64_t tasklet) {
    const auto header = comm::decode(server.expect(Kind::refused));
    EXPECT_EQ(header->reason, Reason::malformed);
    EXPECT_EQ(header->tasklet, TaskletId(tasklet));
  };
  const auto expect_rows = [&](std::int64_t tasklet, std::int64_t first) {
    const auto header = comm::decode(server.expect(Kind::result));
    EXPECT_EQ(header->tasklet, TaskletId(tasklet));
    EXPECT_EQ(header->part.first, first);
  };
  server.send(Panels(1).panel(0));
  server.send(Panels(1).panel(0));
  expect_rows(1, 0);
  server.send(Panels(1).panel(2));
  expect_refused(1);
  server.send(Panels(1).panel(1));
  server.send(Panels(2).panel(1));  // never began
  expect_refused(2);
  server.send(Panels(2).panel(2));
  for (const std::int64_t number : {0, 1, 1, 0, 2, 2}) server.send(Panels(3).panel(number));
  for (const std::int64_t first : {0, 20, 40}) expect_rows(3, first);

  comm::Frame damaged = Panels(4).panel(0);
  damaged.data()[damaged.size() - 1] ^= std::byte{1};
  server.send(std::move(damaged));
  expect_refused(4);
  server.send(Panels(4).panel(1));
  server.send(small_task(0, 5));
  EXPECT_EQ(comm::decode(server.expect(Kind::result))->tasklet, TaskletId(5));
  const HostReport report = server.stop();
  EXPECT_EQ(report.computed, 5);
  EXPECT_EQ(report.refused, 3);
}

// Runs of K of a product that is stored as a weight gradient is: A by columns, so that a run lies in rows of both. With
// `behind`, the operation has one K block more than the tasklet.
class Runs {
 public:
  static constexpr std::int64_t kM = 600, kN = 8, kK = 3 * kBlockK;

  Runs(DType wire, bool behind, std::int64_t tasklet = 1) : header_(gemm_header(kM, kN, kK, behind ? 4 : 3, 0, wire)) {
    header_.tasklet = TaskletId(tasklet);
    header_.a_by_columns = true;
    for (std::vector<float>* x : {&a_, &b_}) {
      kernels::round_to(wire, kernels::Rows(x->data(), 1, static_cast<std::int64_t>(x->size())));
    }
    kernels::Parallel parallel(1);
    EXPECT_EQ(kernels::norm_exponents(parallel, kernels::ConstMatrix(a_.data(), kM).transposed(), kM, kK, e_),
              kernels::ProductStatus::ok);
    EXPECT_EQ(kernels::norm_exponents(parallel, kernels::ConstMatrix(b_.data(), kN).transposed(), kN, kK, f_),
              kernels::ProductStatus::ok);
  }
  [[nodiscard]] comm::Frame task(comm::MessagePart panel) const {
    comm::Header header = header_;
    header.part = panel;
    comm::TaskDraft draft = comm::begin_task(header);
    const std::int64_t k1 = header.k0() + header.depth();
    pack(draft.operands[0], header.wire, {a_.begin() + header.k0() * kM, a_.begin() + k1 * kM});
    pack(draft.operands[1], header.wire, {b_.begin() + header.k0() * kN, b_.begin() + k1 * kN});
    std::copy_n(e_.begin(), draft.row_exponents.size(), draft.row_exponents.begin());
    std::copy_n(f_.begin(), draft.column_exponents.size(), draft.column_exponents.begin());
    return comm::seal(std::move(draft));
  }
  [[nodiscard]] comm::Frame run(std::int64_t number) const {
    return task({.of = comm::PartOf::k_blocks, .first = number, .count = 1});
  }
  [[nodiscard]] static Bytes memory_of_panels() {
    return gemm_streamed_bytes({kM, kN, kK}, DType::f32, true, true, 2 * kBlockK);
  }
  void lie() {
    header_.fault = comm::InjectedFault::bias;
    header_.sequence = 3;
  }
  float& of_a(std::int64_t row, std::int64_t t) { return a_[static_cast<std::size_t>(t * kM + row)]; }

 private:
  comm::Header header_;
  std::vector<float> a_ = numbers(kM * kK, 1), b_ = numbers(kK * kN, 2);
  std::vector<std::int16_t> e_ = std::vector<std::int16_t>(kM), f_ = std::vector<std::int16_t>(kN);
};

// Expects the answer to a run of K that is not the last.
void expect_multiplied(Server& server, std::int64_t number) {
  const comm::Frame frame = server.expect(Kind::result);
  EXPECT_EQ(frame.size(), comm::kHeaderBytes);
  EXPECT_EQ(comm::decode(frame)->part, (comm::MessagePart{.of = comm::PartOf::k_blocks, .first = number, .count = 1}));
}

// The whole result, of parts that come one after another.
std::vector<std::byte> expect_rows(Server& server, std::int64_t m) {
  std::vector<std::byte> rows;
  for (std::int64_t next = 0; next < m;) {
    const comm::Frame frame = server.expect(Kind::result);
    const auto result = comm::decode_result(frame);
    if (!result || result->header.part.of != comm::PartOf::rows || result->header.part.first != next) {
      ADD_FAILURE() << "rows from " << next << " on were to come";
      return rows;
    }
    next = result->header.part.end();
    rows.insert(rows.end(), result->outputs[0].begin(), result->outputs[0].end());
  }
  return rows;
}

TEST(DevicePanels, RunsOfKAreAddedAsTheyCome) {
  Server server;
  server.start(welcome({device(0)}));
  for (const DType wire : {DType::f32, DType::bf16}) {
    for (const bool behind : {false, true}) {
      const Runs runs(wire, behind);
      server.send(runs.task({}));
      const comm::Frame frame = server.expect(Kind::result);
      const std::vector<std::byte> whole = copy_of(comm::decode_result(frame)->outputs[0]);
      for (const std::int64_t number : {0, 1}) {
        server.send(runs.run(number));
        expect_multiplied(server, number);
      }
      server.send(runs.run(2));
      EXPECT_EQ(expect_rows(server, Runs::kM), whole) << name_of(wire) << " " << behind;
    }
  }
  server.stop();
}

// A device with room for the result and two runs of the operands takes a product that it could not take whole.
TEST(DevicePanels, RunsOfKTakeTheMemoryOfTwo) {
  const Bytes memory = Runs::memory_of_panels();
  Server server;
  server.start(welcome({device(0, memory.value())}));
  server.send(Runs(DType::f32, false, 1).task({}));
  EXPECT_EQ(comm::decode(server.expect(Kind::refused))->reason, Reason::memory);
  const Runs runs(DType::f32, false, 2);
  server.send(runs.task({.of = comm::PartOf::k_blocks, .first = 0, .count = 2}));
  EXPECT_EQ(comm::decode(server.expect(Kind::refused))->reason, Reason::memory);
  server.send(runs.task({.of = comm::PartOf::k_blocks, .first = 2, .count = 1}));  // of what is given up
  const Runs others(DType::f32, false, 3);
  for (const std::int64_t number : {0, 1, 2}) server.send(others.run(number));
  expect_multiplied(server, 0);
  expect_multiplied(server, 1);
  EXPECT_EQ(std::ssize(expect_rows(server, Runs::kM)), Runs::kM * Runs::kN * 4);
  server.stop();
}

TEST(DevicePanels, RunsOfKThatAreMissingDoubledOrWrong) {
  Server server;
  server.start(welcome({device(0)}));
  const auto expect_refused = [&](std::int64_t tasklet, Reason reason) {
    const auto header = comm::decode(server.expect(Kind::refused));
    EXPECT_EQ(header->reason, reason);
    EXPECT_EQ(header->tasklet, TaskletId(tasklet));
  };
  const Runs missing(DType::f32, false, 1);
  server.send(missing.run(0));
  expect_multiplied(server, 0);
  server.send(missing.run(2));
  expect_refused(1, Reason::malformed);
  server.send(missing.run(1));

  const Runs interrupted(DType::f32, false, 2);  // by what comes in one message: the rest is not waited for
  server.send(interrupted.run(0));
  expect_multiplied(server, 0);
  server.send(small_task(0, 3));
  server.expect(Kind::result);
  server.send(interrupted.run(1));
  expect_refused(2, Reason::malformed);

  Runs not_finite(DType::f32, false, 4);
  not_finite.of_a(590, kBlockK) = std::numeric_limits<float>::infinity();
  for (const std::int64_t number : {0, 1, 2}) server.send(not_finite.run(number));
  expect_multiplied(server, 0);
  expect_refused(4, Reason::non_finite);  // once

  const Runs honest(DType::f32, false, 5);
  for (const std::int64_t number : {0, 0, 1, 0, 1, 2, 2}) server.send(honest.run(number));
  expect_multiplied(server, 0);
  expect_multiplied(server, 1);
  const std::vector<std::byte> rows = expect_rows(server, Runs::kM);
  Runs lying(DType::f32, false, 6);
  lying.lie();
  for (const std::int64_t number : {0, 1, 2}) server.send(lying.run(number));
  expect_multiplied(server, 0);
  expect_multiplied(server, 1);
  const std::vector<std::byte> lies = expect_rows(server, Runs::kM);
  EXPECT_EQ(lies.size(), rows.size());
  EXPECT_NE(lies, rows);
  server.stop();
}

TEST(DevicePanels, PairsAreAnsweredAsTheyCome) {
  Server server;
  server.start(welcome({device(0)}));
  const std::int64_t pairs = 5, queries = 2, seq = 9, head_dim = 4;
  for (const Work work : {Work::attention_forward, Work::attention_backward}) {
    comm::Header whole = task_header(work, DType::f32);
    whole.attention = {pairs, seq, head_dim, queries};
    const auto task_of = [&](comm::MessagePart panel) {
      comm::Header header = whole;
      header.part = panel;
      comm::TaskDraft draft = comm::begin_task(header);
      for (std::size_t i = 0; i < draft.operands.size(); ++i) {
        if (draft.operands[i].empty()) continue;
        const auto per_pair = static_cast<std::int64_t>(draft.operands[i].size()) / (header.pairs() * 4);
        const std::vector<float> all =
            numbers(static_cast<std::size_t>(pairs * per_pair), static_cast<std::uint32_t>(i));
        const auto first = all.begin() + panel.first * per_pair;
        pack(draft.operands[i], DType::f32, {first, first + header.pairs() * per_pair});
      }
      return comm::seal(std::move(draft));
    };
    std::array<std::vector<std::byte>, 3> expected, parts;
    const auto collect = [&](std::array<std::vector<std::byte>, 3>& into) {
      const comm::Frame frame = server.expect(Kind::result);
      const auto result = comm::decode_result(frame);
      ASSERT_TRUE(result);
      for (std::size_t i = 0; i < into.size(); ++i)
        into[i].insert(into[i].end(), result->outputs[i].begin(), result->outputs[i].end());
    };
    server.send(task_of({}));
    collect(expected);
    for (const auto& [first, count] : {std::pair{0, 2}, {2, 2}, {4, 1}}) {
      server.send(task_of({.of = comm::PartOf::pairs, .first = first, .count = count}));
      collect(parts);
    }
    EXPECT_EQ(parts, expected);
  }
  server.stop();
}

}  // namespace
}  // namespace cleave::device
