// A step in stages on a device rank: what is held takes the device's memory until it is released or the next step
// begins, and a device that could not hold something refuses what it would be asked for.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "as_server.hpp"
#include "cleave/base/byte_cursor.hpp"
#include "cleave/base/resident.hpp"
#include "cleave/model/step_text.hpp"
#include "cleave/pieces/stage_parts.hpp"

namespace cleave::device {
namespace {

using comm::StageErrand;

constexpr std::int64_t kRowsOfAll = 8, kColumnsOfAll = 16, kSecondPiece = 1;

model::StepText small_step() {
  model::StepText step;
  step.config.family = "opt";
  step.config.vocab_size = 20;
  step.config.n_layer = 1;
  step.config.n_head = step.config.n_kv_head = 2;
  step.config.d_model = kColumnsOfAll;
  step.config.d_ff = 40;
  step.config.seq_len = step.config.max_pos = kRowsOfAll;
  return step;
}

// Memory of small_task().
std::int64_t of_small_task() {
  return gemm_resident_bytes({4, 3, 8}, DType::f32, false, true, PanelOrder::whole, 1).value();
}

class StagesHost : public ::testing::Test {
 protected:
  void start(std::int64_t memory) {
    comm::Welcome terms = welcome({device(0, memory)});
    terms.step = model::to_text(small_step());
    server_.start(terms);
  }
  void TearDown() override { server_.stop(); }

  // The number of the task.
  std::int64_t ask(comm::StageTask of, const std::vector<std::byte>& payload = {}) {
    of.operand_bytes = std::ssize(payload);
    return ask_again(++last_, of, payload);
  }
  std::int64_t ask_again(std::int64_t tasklet, const comm::StageTask& of, const std::vector<std::byte>& payload = {}) {
    comm::Header header = task_header(Work::stage, DType::f32);
    header.tasklet = TaskletId(tasklet);
    header.stage_task = of;
    comm::TaskDraft draft = comm::begin_task(header);
    std::copy(payload.begin(), payload.end(), draft.operands[0].begin());
    server_.send(comm::seal(std::move(draft)));
    return tasklet;
  }
  void begin() { ask({.errand = StageErrand::begin}); }
  std::int64_t hold(std::int64_t memory) { return ask({.errand = StageErrand::hold, .memory = memory}); }
  std::int64_t hold_stage(std::int64_t memory) {
    model::StepGraph graph = model::graph_of_stages(small_step());
    pieces::PieceTable table(graph);
    const std::int64_t bytes = pieces::bytes_of_stage(table, kSecondPiece, kSecondPiece + 1);
    std::vector<std::byte> payload(3 * 8 + static_cast<std::size_t>(bytes), std::byte{0x22});
    ByteWriter to(payload);
    for (const std::int64_t value : {kSecondPiece, kSecondPiece + 1, std::int64_t{0}}) to.put_value(value);
    return ask({.errand = StageErrand::hold, .memory = memory}, payload);
  }
  // All rows of a sequence pass the stage; a refusal says why not.
  Reason forward() {
    const std::vector<std::byte> x(static_cast<std::size_t>(kRowsOfAll * kColumnsOfAll) * sizeof(float));
    ask({.errand = StageErrand::forward, .rows = kRowsOfAll, .result_bytes = std::ssize(x)}, x);
    return answer();
  }
  // Whether a product that takes of_small_task() finds room.
  Reason multiply() {
    server_.send(small_task(0, ++last_));
    return answer();
  }
  // Of the next answer, which may be a refusal.
  Reason answer() {
    const SteadyClock clock;
    for (const Seconds deadline = clock.now() + kPatience; clock.now() < deadline;) {
      auto received = server_.transport().wait(Seconds(1));
      if (!received) continue;
      const auto header = comm::decode(received->frame);
      EXPECT_TRUE(header);
      if (!header || header->kind == Kind::ping) continue;
      EXPECT_TRUE(header->kind == Kind::result || header->kind == Kind::refused);
      EXPECT_EQ(header->tasklet, TaskletId(last_));
      return header->reason;
    }
    ADD_FAILURE() << "waited in vain for an answer";
    return Reason::none;
  }
  void release(std::int64_t tasklet) { server_.send(comm::encode_release(TaskletId(tasklet), DeviceId(0))); }

  Server server_;
  std::int64_t last_ = 0;
};

TEST_F(StagesHost, WhatIsHeldTakesMemoryUntilItIsReleased) {
  start(of_small_task() + 100);
  begin();
  const std::int64_t first = hold(100);
  EXPECT_EQ(multiply(), Reason::none);
  ask_again(first, {.errand = StageErrand::hold, .memory = 100});  // the same once more
  EXPECT_EQ(multiply(), Reason::none);
  const std::int64_t second = hold(1);
  EXPECT_EQ(multiply(), Reason::memory);
  release(second);
  release(second);
  EXPECT_EQ(multiply(), Reason::none);
  hold(of_small_task());
  EXPECT_EQ(multiply(), Reason::memory);
  begin();  // the next step: nothing is held
  EXPECT_EQ(multiply(), Reason::none);
  hold(of_small_task() + 100);
  EXPECT_EQ(multiply(), Reason::memory);
}

TEST_F(StagesHost, KeptColumnsTakeMemoryThatNothingCanBeHeldIn) {
  const std::int64_t columns = kept_columns_bytes(3, 8, DType::f32, false).value();
  start(columns + 100);
  comm::Header bring = gemm_header(0, 3, 8, 1, 0, DType::f32);
  bring.tasklet = TaskletId(++last_);
  bring.columns = comm::Columns::bring;
  comm::TaskDraft draft = comm::begin_task(bring);
  pack(draft.operands[1], DType::f32, numbers(24, 2));
  server_.send(comm::seal(std::move(draft)));
  begin();
  hold(101);
  EXPECT_EQ(answer(), Reason::memory);
  begin();
  hold(100);
  EXPECT_EQ(forward(), Reason::absent);  // nothing lacks but the stage
}

// Whoever could not hold something says so of all that comes, until the next step.
TEST_F(StagesHost, WhatCouldNotBeHeldIsMissedUntilTheNextStep) {
  start(1000);
  begin();
  EXPECT_EQ(forward(), Reason::absent);
  hold(1001);
  EXPECT_EQ(answer(), Reason::memory);
  EXPECT_EQ(forward(), Reason::memory);
  begin();
  EXPECT_EQ(forward(), Reason::absent);
}

TEST_F(StagesHost, AStageWhoseMemoryIsReleasedIsGivenUp) {
  start(1 << 20);
  begin();
  const std::int64_t stage = hold_stage(1000);
  EXPECT_EQ(forward(), Reason::none);
  release(stage);
  EXPECT_EQ(forward(), Reason::absent);
}

}  // namespace
}  // namespace cleave::device
