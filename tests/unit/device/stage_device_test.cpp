// Sums of an owner on an emulated device with a 16-bit wire: they travel in 4 bytes an element, in 8 where they need
// them, and a device whose memory does not hold that refuses. Visits to a stage that it holds.
#include "stage_device.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cleave/base/byte_cursor.hpp"
#include "cleave/base/random.hpp"
#include "cleave/kernels/wire.hpp"
#include "cleave/model/family.hpp"

namespace cleave::device {
namespace {

using comm::Reason;
using comm::StageErrand;
using pieces::UnitRange;

constexpr std::int64_t kWidth = 16, kSeq = 8, kMlp = 1;  // the second piece
constexpr std::int32_t kStage = 0, kOwner = 4;

class StageDeviceTest : public ::testing::Test {
 protected:
  StageDeviceTest() {
    model::ModelConfig config;
    config.family = "opt";
    config.vocab_size = 20;
    config.n_layer = 1;
    config.n_head = config.n_kv_head = 2;
    config.d_model = kWidth;
    config.d_ff = 40;
    config.seq_len = config.max_pos = kSeq;
    graph_ = model::build_step(config, {.kind = model::StepKind::train,
                                        .batch = 4,
                                        .clip = true,
                                        .freeze = {},
                                        .loss_rows = 4 * kSeq,
                                        .row_groups = 1,
                                        .wire = DType::f16});
    table_.emplace(graph_);
    weights_.resize(static_cast<std::size_t>(pieces::bytes_of(
        graph_, pieces::parameters_of(*table_, pieces::steps_of_owner(*table_, kMlp, kMlp + 1, slices_)))));
    std::memset(weights_.data(), 0x22, weights_.size());  // small positive numbers, in fp16 and in fp32
    for (const pieces::Region& region : pieces::regions_of(*table_, slices_)) elements_ += region.elements();
  }

  std::vector<std::byte> rows(double size, std::uint32_t stream) const {
    const Random random(3, Purpose::test, stream);
    std::vector<float> values(static_cast<std::size_t>(kSeq * kWidth));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(size * random.normal(i));
    std::vector<std::byte> bytes(values.size() * 2);
    kernels::to_wire(DType::f16, {values.data(), 1, std::ssize(values)}, bytes.data());
    return bytes;
  }

  // The frame must outlive the view.
  comm::TaskView task(const comm::StageTask& of, std::span<const std::byte> payload, std::int32_t owner = kOwner) {
    comm::Header header;
    header.kind = comm::Kind::task;
    header.tasklet = TaskletId(++last_);
    header.device = DeviceId(0);
    header.work = comm::Work::stage;
    header.wire = header.output = DType::f16;
    header.panels = 1;
    header.stage_task = of;
    header.stage_task.stage = kStage;
    header.stage_task.owner = owner;
    header.digest = comm::makes_again(of.errand);
    header.stage_task.operand_bytes = std::ssize(payload);
    comm::TaskDraft draft = comm::begin_task(header);
    std::ranges::copy(payload, draft.operands[0].begin());
    frames_.push_back(comm::seal(std::move(draft)));
    return *comm::decode_task(frames_.back());
  }

  auto execute(StageDevice& device, const comm::TaskView& of) { return device.execute(of, frames_.back()); }

  void hold(StageDevice& device) {
    std::vector<std::byte> payload(3 * 8 + sizeof(UnitRange) + weights_.size());
    ByteWriter to(payload);
    to.put_value<std::int64_t>(kMlp);
    to.put_value<std::int64_t>(kMlp + 1);
    to.put_value<std::int64_t>(std::ssize(slices_));
    to.put(std::span<const UnitRange>(slices_));
    to.put(std::span<const std::byte>(weights_));
    EXPECT_FALSE(execute(device, task({.errand = StageErrand::hold, .memory = 1}, payload)));
  }

  void hold_stage(StageDevice& device) {
    const std::int64_t bytes = pieces::bytes_of_stage(*table_, kMlp, kMlp + 1);
    std::vector<std::byte> payload(3 * 8 + static_cast<std::size_t>(bytes), std::byte{0x22});
    ByteWriter to(payload);
    to.put_value<std::int64_t>(kMlp);
    to.put_value<std::int64_t>(kMlp + 1);
    to.put_value<std::int64_t>(0);
    EXPECT_FALSE(execute(device, task({.errand = StageErrand::hold, .memory = 1}, payload, -1)));
  }

  // All rows of a sequence at the stage: what it returns, or why it does not.
  std::variant<std::vector<std::byte>, Reason> visit(StageDevice& device, StageErrand errand, std::int64_t sequence) {
    const bool back = errand == StageErrand::backward || errand == StageErrand::witness_backward;
    const bool again = errand == StageErrand::witness_forward || errand == StageErrand::witness_backward;
    std::vector<std::byte> payload = rows(1.0, errand == StageErrand::backward ? 2 : 1);
    if (errand == StageErrand::witness_backward) {
      const std::vector<std::byte> dy = rows(1.0, 2);
      payload.insert(payload.end(), dy.begin(), dy.end());
    }
    const std::int64_t norms = back ? 4 * pieces::norm_elements(*table_, kMlp, kMlp + 1) : 0;
    const std::int64_t size = errand == StageErrand::recompute ? 0 : kSeq * kWidth * 2 + norms;
    auto answer = execute(device, task({.errand = errand,
                                        .sequence = sequence,
                                        .row = again ? static_cast<std::int32_t>(kSeq) : 0,
                                        .rows = kSeq,
                                        .result_bytes = size},
                                       payload, -1));
    if (const auto* reason = std::get_if<Reason>(&*answer)) return *reason;
    const std::span<std::byte> bytes = std::get<comm::ResultDraft>(*answer).outputs[0];
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }

  Reason add(StageDevice& device, std::int64_t sequence, double size) {
    std::vector<std::byte> payload = rows(1.0, 1);
    const std::vector<std::byte> dy = rows(size, 2);
    payload.insert(payload.end(), dy.begin(), dy.end());
    const auto answer =
        execute(device, task({.errand = StageErrand::sum, .sequence = sequence, .rows = kSeq}, payload));
    const auto* reason = std::get_if<Reason>(&*answer);
    return reason == nullptr ? Reason::none : *reason;
  }

  comm::ResultDraft sums(StageDevice& device, bool partial) {
    std::vector<std::byte> payload(2 * 8 + sizeof(UnitRange));
    ByteWriter to(payload);
    to.put_value<std::int64_t>(partial ? 1 : 0);
    to.put_value<std::int64_t>(std::ssize(slices_));
    to.put(std::span<const UnitRange>(slices_));
    auto answer = execute(
        device, task({.errand = StageErrand::send_sums, .result_bytes = elements_ * (partial ? 4 : 2)}, payload));
    return std::move(std::get<comm::ResultDraft>(*answer));
  }

  model::StepGraph graph_;
  std::optional<pieces::PieceTable> table_;
  std::vector<UnitRange> slices_{{kMlp, 5, 40}};
  std::vector<std::byte> weights_;
  std::int64_t elements_ = 0, last_ = 0;
  std::vector<comm::Frame> frames_;
  kernels::Parallel parallel_;
};

TEST_F(StageDeviceTest, PartialSumsTakeEightBytesWhereFourDoNotHoldThem) {
  StageDevice device(*table_, parallel_, Bytes(1 << 20));
  hold(device);
  ASSERT_EQ(add(device, 0, 1e-3), Reason::none);
  const comm::ResultDraft narrow = sums(device, true);
  EXPECT_EQ(narrow.header.stage_task.result_bytes, elements_ * 4);
  EXPECT_EQ(narrow.header.stage_task.rows, 0);
  ASSERT_EQ(add(device, 1, 100), Reason::none);
  const comm::ResultDraft wide = sums(device, true), finished = sums(device, false);
  EXPECT_EQ(wide.header.stage_task.result_bytes, elements_ * 8);
  EXPECT_GT(wide.header.stage_task.rows, 0) << "rows that were promoted";
  EXPECT_EQ(finished.header.stage_task.result_bytes, elements_ * 2);
  // The one is made of the other.
  const auto* integers = reinterpret_cast<const std::int64_t*>(wide.outputs[0].data());
  const auto* halves = reinterpret_cast<const std::uint16_t*>(finished.outputs[0].data());
  for (std::int64_t i = 0; i < elements_; ++i)
    ASSERT_EQ(halves[i], kernels::to_f16(static_cast<float>(static_cast<double>(integers[i]) * 0x1p-24))) << i;
}

// A task that comes twice is carried out once; what was never added is not taken away, in the next step either.
TEST_F(StageDeviceTest, SumsHaveWhatWasAddedOnceAndNotTakenAway) {
  StageDevice device(*table_, parallel_, Bytes(1 << 20));
  const auto bytes_of = [](const comm::ResultDraft& draft) {
    return std::vector<std::byte>(draft.outputs[0].begin(), draft.outputs[0].end());
  };
  std::vector<std::byte> payload = rows(1.0, 1);
  const std::vector<std::byte> dy = rows(1e-3, 2);
  payload.insert(payload.end(), dy.begin(), dy.end());
  const auto task_of = [&](StageErrand errand, std::int64_t tasklet, std::int64_t sequence = 0) {
    comm::TaskView view = task({.errand = errand, .sequence = sequence, .rows = kSeq}, payload);
    view.header.tasklet = TaskletId(tasklet);
    return view;
  };
  hold(device);
  ASSERT_EQ(add(device, 0, 1e-3), Reason::none);
  const std::int64_t added = last_;
  const std::vector<std::byte> once = bytes_of(sums(device, true));
  EXPECT_FALSE(execute(device, task_of(StageErrand::sum, added))) << "it came before";
  EXPECT_EQ(bytes_of(sums(device, true)), once);
  EXPECT_FALSE(execute(device, task_of(StageErrand::take_away, added + 1000))) << "nobody added it";
  EXPECT_EQ(bytes_of(sums(device, true)), once);
  ASSERT_EQ(add(device, 1, 1e-3), Reason::none);
  EXPECT_NE(bytes_of(sums(device, true)), once);
  EXPECT_FALSE(execute(device, task_of(StageErrand::take_away, last_ - 1, 1)));
  EXPECT_EQ(bytes_of(sums(device, true)), once) << "it was not taken away";
  EXPECT_FALSE(execute(device, task({.errand = StageErrand::begin}, {}, -1)));
  hold(device);
  ASSERT_EQ(add(device, 0, 1e-3), Reason::none);
  EXPECT_FALSE(execute(device, task_of(StageErrand::take_away, added))) << "of the step before";
  EXPECT_EQ(bytes_of(sums(device, true)), once);
}

// X of a sequence is here for its backward pass, when its forward pass comes here too, since the device that had it is
// lost; and when one of its visits is recomputed here, which another device has run.
TEST_F(StageDeviceTest, OtherVisitsOfASequenceDoNotEndItsWayBack) {
  StageDevice device(*table_, parallel_, Bytes(1 << 20));
  hold_stage(device);
  const auto forward = visit(device, StageErrand::forward, 2);
  ASSERT_TRUE(std::holds_alternative<std::vector<std::byte>>(forward));
  ASSERT_TRUE(std::holds_alternative<std::vector<std::byte>>(visit(device, StageErrand::recompute, 2)));
  const auto back = visit(device, StageErrand::backward, 2);
  ASSERT_TRUE(std::holds_alternative<std::vector<std::byte>>(back));
  for (const StageErrand between :
       {StageErrand::forward, StageErrand::witness_forward, StageErrand::witness_backward}) {
    ASSERT_TRUE(std::holds_alternative<std::vector<std::byte>>(visit(device, StageErrand::recompute, 2)));
    EXPECT_EQ(visit(device, between, 2), between == StageErrand::witness_backward ? back : forward);
    EXPECT_EQ(visit(device, StageErrand::backward, 2), back) << static_cast<int>(between);
  }
}

// Whose memory is given back is not there any more, until it comes again.
TEST_F(StageDeviceTest, GivesUpAStageWithTheSequencesThere) {
  StageDevice device(*table_, parallel_, Bytes(1 << 20));
  hold_stage(device);
  ASSERT_TRUE(std::holds_alternative<std::vector<std::byte>>(visit(device, StageErrand::recompute, 1)));
  device.drop_stage(kStage);
  EXPECT_EQ(std::get<Reason>(visit(device, StageErrand::backward, 1)), Reason::absent);
  EXPECT_EQ(std::get<Reason>(visit(device, StageErrand::forward, 1)), Reason::absent);
  hold_stage(device);
  EXPECT_EQ(std::get<Reason>(visit(device, StageErrand::backward, 1)), Reason::absent) << "it was not begun again";
  EXPECT_TRUE(std::holds_alternative<std::vector<std::byte>>(visit(device, StageErrand::forward, 1)));
}

TEST_F(StageDeviceTest, RefusesSumsThatItsMemoryDoesNotHold) {
  const Bytes exact(std::ssize(weights_) + elements_ * 4);
  StageDevice device(*table_, parallel_, exact);
  hold(device);
  EXPECT_EQ(add(device, 0, 1e-3), Reason::none);
  EXPECT_EQ(add(device, 1, 100), Reason::memory);
}

TEST_F(StageDeviceTest, RefusesAnotherWireType) {
  StageDevice device(*table_, parallel_, Bytes(1 << 20));
  hold(device);
  std::vector<std::byte> payload = rows(1, 1);  // as long as it is to be
  payload.insert(payload.end(), payload.begin(), payload.end());
  comm::TaskView other = task({.errand = StageErrand::sum, .rows = kSeq}, payload);
  other.header.wire = other.header.output = DType::bf16;
  EXPECT_EQ(std::get<Reason>(*execute(device, other)), Reason::malformed);
}

}  // namespace
}  // namespace cleave::device
