// The executor: a step's numbers do not depend on how operations are cut, wrong blocks are found and change nothing,
// and updates can be taken back while somebody may still be found out.
#include "executor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>

#include "cleave/model/family.hpp"

namespace cleave::server {
namespace {

using model::Operation;
using model::OpKind;

constexpr std::int64_t kBatch = 2;

// d_ff is cut into three K blocks.
model::ModelConfig config_of(const std::string& family) {
  model::ModelConfig config;
  config.family = family;
  config.vocab_size = 90;
  config.n_layer = 2;
  config.n_head = config.n_kv_head = 4;
  config.d_model = 32;
  config.d_ff = 3200;
  config.seq_len = config.max_pos = 12;
  return config;
}

/// Into how many parts each side of an operation is cut.
struct Cut {
  std::int64_t m = 1, n = 1, k = 1, pairs = 1;
};

class ExecutorTest : public ::testing::TestWithParam<const char*> {
 protected:
  ExecutorTest() : config_(config_of(GetParam())), training_(graph_of(model::StepKind::train)) {
    for (std::int64_t i = 0; i < kBatch * config_.seq_len; ++i) {
      tokens_.push_back(static_cast<std::int32_t>((7 * i + 3) % config_.vocab_size));
      targets_.push_back(static_cast<std::int32_t>((5 * i + 1) % config_.vocab_size));
    }
  }
  [[nodiscard]] model::StepGraph graph_of(model::StepKind kind) const {
    return model::build_step(
        config_, {.kind = kind, .batch = kBatch, .clip = false, .freeze = {}, .loss_rows = 0, .row_groups = 1});
  }
  [[nodiscard]] ParameterStore parameters() const {
    ParameterStore store(training_, 11);
    store.ensure_moments(training_);
    return store;
  }
  [[nodiscard]] StepInputs inputs() const { return {tokens_, targets_, {.lr = 1e-2, .weight_decay = 0.1, .k = 1}, {}}; }

  std::vector<sched::Tasklet> tasklets_of(const Operation& op, const Cut& cut) {
    std::vector<sched::Tasklet> all;
    const auto add = [&](const GemmBox& box, const PairRange& pairs) {
      sched::Tasklet tasklet;
      tasklet.id = TaskletId(next_id_++);
      tasklet.op = op.id;
      tasklet.piece.device = DeviceId(3);
      tasklet.piece.box = box;
      tasklet.piece.pairs = pairs;
      all.push_back(tasklet);
    };
    const auto at = [](std::int64_t size, std::int64_t parts, std::int64_t i) { return size * i / parts; };
    if (op.kind != OpKind::gemm) {
      const std::int64_t pairs = op.attention.pairs(), parts = std::min(cut.pairs, pairs);
      for (std::int64_t i = 0; i < parts; ++i) add({}, {at(pairs, parts, i), at(pairs, parts, i + 1)});
      return all;
    }
    const auto [m, n, k] = op.gemm;
    const std::int64_t blocks = k_blocks(k), deep = std::min(cut.k, blocks);
    const std::int64_t rows = std::min(cut.m, m), columns = std::min(cut.n, n);
    for (std::int64_t z = deep; z-- > 0;) {  // the last K block first: order does not count either
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) {
          add({at(m, rows, i), at(m, rows, i + 1), at(n, columns, j), at(n, columns, j + 1),
               at(blocks, deep, z) * kBlockK, std::min(k, at(blocks, deep, z + 1) * kBlockK)},
              {});
        }
      }
    }
    return all;
  }

  // Runs operations as soon as what they wait for is done, kernels first, until `stop` says so.
  template <class Stop>
  void run(Executor& executor, const model::StepGraph& graph, const Cut& cut, const Stop& stop) {
    std::set<OpId> done;
    const auto ready = [&](const Operation& op) {
      return !done.contains(op.id) &&
             std::ranges::all_of(op.after, [&](const OpId before) { return done.contains(before); });
    };
    while (done.size() < graph.operations.size()) {
      const Operation* next = nullptr;
      for (const Operation& op : graph.operations) {
        if (!ready(op) || (next != nullptr && model::runs_on_devices(op.kind))) continue;
        if (next == nullptr || model::runs_on_devices(next->kind)) next = &op;
      }
      ASSERT_NE(next, nullptr);
      if (stop(*next)) return;
      if (model::runs_on_devices(next->kind)) {
        for (const sched::Tasklet& tasklet : tasklets_of(*next, cut)) executor.compute(tasklet);
      } else {
        executor.run(*next);
      }
      executor.finish(next->id);
      executor.retire(next->id);
      done.insert(next->id);
    }
  }
  void run(Executor& executor, const model::StepGraph& graph, const Cut& cut) {
    run(executor, graph, cut, [](const Operation&) { return false; });
  }

  model::ModelConfig config_;
  model::StepGraph training_;
  std::vector<std::int32_t> tokens_, targets_;
  std::int64_t next_id_ = 0;
};

TEST_P(ExecutorTest, TheSameBitsHoweverOperationsAreCut) {
  for (const DType wire : {DType::f32, DType::bf16}) {
    std::uint64_t expected = 0;
    double loss = 0;
    for (const Cut& cut : {Cut{}, Cut{3, 1, 1, 2}, Cut{1, 5, 2, 3}, Cut{2, 3, 3, 8}}) {
      ParameterStore store = parameters();
      const std::uint64_t before = store.hash();
      Executor executor(store, wire, {});
      executor.begin_step(training_, inputs());
      run(executor, training_, cut);
      EXPECT_NE(store.hash(), before);
      if (expected == 0) {
        expected = store.hash();
        loss = executor.loss();
        EXPECT_NEAR(loss, std::log(static_cast<double>(config_.vocab_size)), 0.5);  // of random parameters
      }
      EXPECT_EQ(store.hash(), expected) << cut.m << " " << cut.n << " " << cut.k << " " << cut.pairs;
      EXPECT_EQ(executor.loss(), loss);
    }
  }
}

TEST_P(ExecutorTest, UpdatesAreTakenBackWhileADeviceIsStillAtWork) {
  ParameterStore straight = parameters(), store = parameters();
  Executor reference(straight, DType::f32, {});
  reference.begin_step(training_, inputs());
  run(reference, training_, {});

  Executor executor(store, DType::f32, {});
  const std::uint64_t before = store.hash();
  const auto products =
      std::ranges::count_if(training_.operations, [](const Operation& op) { return model::runs_on_devices(op.kind); });
  executor.begin_step(training_, inputs());
  EXPECT_FALSE(executor.updating());
  std::int64_t seen = 0;
  run(executor, training_, {}, [&](const Operation& op) {  // all but the last
    return model::runs_on_devices(op.kind) && ++seen == products;
  });
  ASSERT_TRUE(executor.updating());
  ASSERT_NE(store.hash(), before);
  executor.undo_updates();
  EXPECT_EQ(store.hash(), before);
  for (const Parameter& parameter : store.parameters()) {
    EXPECT_TRUE(std::ranges::all_of(parameter.exp_avg, [](float moment) { return moment == 0; })) << parameter.name;
    EXPECT_TRUE(std::ranges::all_of(parameter.exp_avg_sq, [](float moment) { return moment == 0; })) << parameter.name;
  }
  executor.begin_step(training_, inputs());
  run(executor, training_, {});
  EXPECT_EQ(store.hash(), straight.hash());
  EXPECT_EQ(executor.loss(), reference.loss());
}

// The head's product comes from a device, whose block a second executor knows: its logits.
class ReturnedBlocks : public ExecutorTest {
 protected:
  ReturnedBlocks() : graph_(graph_of(model::StepKind::evaluate)) {
    for (const Operation& op : graph_.operations) {
      if (op.kind == OpKind::gemm && op.out[0].tensor == graph_.logits) head_ = &op;
    }
    Executor reference(known_store_, DType::f32, {});
    reference.begin_step(graph_, inputs());
    run(reference, graph_, {});
    loss_ = reference.loss();
    const kernels::ConstRows logits = reference.logits();
    for (std::int64_t i = 0; i < head_->gemm.m; ++i)
      block_.insert(block_.end(), logits.row(i), logits.row(i) + head_->gemm.n);
  }
  // An executor that has come as far as the head.
  std::unique_ptr<Executor> at_head(VerifyMode mode, std::uint64_t seed = 1) {
    auto executor =
        std::make_unique<Executor>(store_, DType::f32, ExecutorOptions{.verification = {.mode = mode, .seed = seed}});
    executor->begin_step(graph_, inputs());
    run(*executor, graph_, {}, [this](const Operation& op) { return op.id == head_->id; });
    return executor;
  }
  // The verdict on a block that answers a task of its own; `change` may change its header before it is made.
  template <class Change>
  Verdict answer(Executor& executor, const std::vector<float>& block, const Change& change) {
    const sched::Tasklet tasklet = tasklets_of(*head_, {}).front();
    const comm::Frame task = comm::seal_payload(executor.gather().message(tasklet, {}, {}, {}));
    const auto asked = comm::decode(task);
    EXPECT_TRUE(asked);
    comm::Header header = comm::result_header(*asked);
    change(header);
    comm::ResultDraft draft = comm::begin_result(header);
    std::memcpy(draft.outputs[0].data(), block.data(), std::min(draft.outputs[0].size(), block.size() * sizeof(float)));
    comm::set_timing(draft, Seconds(0.5), Seconds(1));
    const comm::Frame frame = comm::seal(std::move(draft));
    const auto result = comm::decode_result(frame);
    EXPECT_TRUE(result);
    return executor.place(tasklet, *result);
  }
  Verdict answer(Executor& executor, const std::vector<float>& block) {
    return answer(executor, block, [](comm::Header&) {});
  }

  model::StepGraph graph_;
  const Operation* head_ = nullptr;
  ParameterStore known_store_ = parameters(), store_ = parameters();
  std::vector<float> block_;
  double loss_ = 0;
};

TEST_P(ReturnedBlocks, AWrongBlockIsFoundAndTheRightOneTakesItsPlace) {
  const std::unique_ptr<Executor> executor = at_head(VerifyMode::all);
  std::vector<float> wrong = block_;
  wrong[wrong.size() / 2] += 1;
  EXPECT_EQ(answer(*executor, wrong), Verdict::wrong);
  EXPECT_EQ(answer(*executor, block_), Verdict::good);
  const VerificationReport& report = executor->verification();
  EXPECT_EQ(report.blocks, 2);
  EXPECT_EQ(report.checked, 2);
  ASSERT_EQ(report.wrong.size(), 1U);
  EXPECT_EQ(report.wrong[0].device, DeviceId(3));
  EXPECT_TRUE(report.wrong[0].checked);
  EXPECT_GT(report.wrong[0].ratio, 1);
  EXPECT_LT(report.largest_ratio, 1);
  EXPECT_EQ(report.device_time, Seconds(1));

  executor->retire(head_->id);
  for (const Operation& op : graph_.operations) {
    if (op.id.value > head_->id.value) executor->run(op);
  }
  EXPECT_EQ(executor->loss(), loss_);
}

TEST_P(ReturnedBlocks, WhatWasNotAskedForIsWrongUnchecked) {
  const std::unique_ptr<Executor> executor = at_head(VerifyMode::off);
  EXPECT_EQ(answer(*executor, block_, [](comm::Header& header) { header.device = DeviceId(4); }), Verdict::wrong);
  EXPECT_EQ(answer(*executor, block_, [](comm::Header& header) { header.gemm.m -= 1; }), Verdict::wrong);
  EXPECT_EQ(answer(*executor, block_, [](comm::Header& header) { header.wire = header.output = DType::bf16; }),
            Verdict::wrong);
  std::vector<float> not_finite = block_;
  not_finite.back() = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(answer(*executor, not_finite), Verdict::wrong);
  ASSERT_EQ(executor->verification().wrong.size(), 4U);
  for (const Finding& finding : executor->verification().wrong) {
    EXPECT_FALSE(finding.checked);
    EXPECT_EQ(finding.device, DeviceId(3));  // who was asked
  }
  EXPECT_EQ(executor->verification().checked, 0);
}

// What is not finite is never compared with anything: it is wrong whether or not its block was drawn.
TEST_P(ReturnedBlocks, WhatIsNotFiniteIsWrongUncheckedThoughItWasDrawn) {
  const std::unique_ptr<Executor> executor = at_head(VerifyMode::all);
  std::vector<float> not_finite = block_;
  not_finite.front() = std::numeric_limits<float>::infinity();
  EXPECT_EQ(answer(*executor, not_finite), Verdict::wrong);
  ASSERT_EQ(executor->verification().wrong.size(), 1U);
  EXPECT_FALSE(executor->verification().wrong[0].checked);
  EXPECT_EQ(executor->verification().checked, 0);
}

// A device that knew them could make up for what it adds in one place by what it adds in another.
TEST_P(ReturnedBlocks, VectorsOfTheCheckComeFromTheSecret) {
  std::vector<float> wrong = block_;
  for (float& x : wrong) x += 1;
  std::set<double> ratios;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const std::unique_ptr<Executor> executor = at_head(VerifyMode::all, seed);
    ASSERT_EQ(answer(*executor, wrong), Verdict::wrong);
    ratios.insert(executor->verification().wrong[0].ratio);
  }
  EXPECT_GT(ratios.size(), 4U);
}

// Blocks that are no product, or that are added up before anybody can look at them.
class OtherBlocks : public ExecutorTest {
 protected:
  // The verdict on a block all of whose elements are `value`, of the first operation that `wanted` says; `change` may
  // change its header.
  template <class T, class Wanted, class Change>
  Verdict answer(VerifyMode mode, const Wanted& wanted, T value, const Change& change) {
    store_ = parameters();
    executor_ = std::make_unique<Executor>(store_, DType::f32, ExecutorOptions{.verification = {.mode = mode}});
    executor_->begin_step(training_, inputs());
    const Operation* op = nullptr;
    run(*executor_, training_, {}, [&](const Operation& next) {
      if (wanted(next)) op = &next;
      return op != nullptr;
    });
    if (op == nullptr) throw std::logic_error("no such operation");
    const sched::Tasklet tasklet = tasklets_of(*op, {.k = 2}).front();
    const comm::Frame task = comm::seal_payload(executor_->gather().message(tasklet, {}, {}, {}));
    comm::Header header = comm::result_header(*comm::decode(task));
    change(header);
    comm::ResultDraft draft = comm::begin_result(header);
    for (const std::span<std::byte> output : draft.outputs) {
      for (std::size_t at = 0; at + sizeof value <= output.size(); at += sizeof value)
        std::memcpy(output.data() + at, &value, sizeof value);
    }
    const comm::Frame frame = comm::seal(std::move(draft));
    return executor_->place(tasklet, *comm::decode_result(frame));
  }
  template <class T, class Wanted>
  Verdict answer(VerifyMode mode, const Wanted& wanted, T value) {
    return answer(mode, wanted, value, [](comm::Header&) {});
  }

  ParameterStore store_ = parameters();
  std::unique_ptr<Executor> executor_;
};

TEST_P(OtherBlocks, WrongPairsOfAttentionAreFound) {
  for (const OpKind kind : {OpKind::attention_forward, OpKind::attention_backward}) {
    const auto wanted = [&](const Operation& op) { return op.kind == kind; };
    EXPECT_EQ(answer(VerifyMode::all, wanted, 0.5F), Verdict::wrong);
    ASSERT_EQ(executor_->verification().wrong.size(), 1U);
    EXPECT_TRUE(executor_->verification().wrong[0].checked);
    EXPECT_GT(executor_->verification().wrong[0].ratio, 1);
    EXPECT_EQ(answer(VerifyMode::off, wanted, std::numeric_limits<float>::quiet_NaN()), Verdict::wrong);
    EXPECT_EQ(answer(VerifyMode::off, wanted, 0.5F, [](comm::Header& header) { header.attention.pairs += 1; }),
              Verdict::wrong);
    EXPECT_EQ(answer(VerifyMode::off, wanted, 0.5F), Verdict::good) << "nobody looks";
  }
}

TEST_P(OtherBlocks, SumsThatNoHonestDeviceSendsAreWrongInEveryMode) {
  const auto wanted = [](const Operation& op) { return op.kind == OpKind::gemm && k_blocks(op.gemm.k) > 2; };
  constexpr std::int64_t kMost = std::int64_t{1} << 61;
  for (const std::int64_t sum : {kMost + 1, -kMost - 1, std::numeric_limits<std::int64_t>::min()}) {
    for (const VerifyMode mode : {VerifyMode::off, VerifyMode::all}) {
      EXPECT_EQ(answer(mode, wanted, sum), Verdict::wrong) << name_of(mode) << " " << sum;
      ASSERT_EQ(executor_->verification().wrong.size(), 1U);
      EXPECT_FALSE(executor_->verification().wrong[0].checked);
    }
  }
  EXPECT_EQ(answer(VerifyMode::off, wanted, kMost), Verdict::good);
  EXPECT_EQ(answer(VerifyMode::all, wanted, kMost), Verdict::wrong);
}

INSTANTIATE_TEST_SUITE_P(Families, ExecutorTest, ::testing::Values("gpt2", "opt", "llama"),
                         [](const auto& each) { return std::string(each.param); });
INSTANTIATE_TEST_SUITE_P(Families, OtherBlocks, ::testing::Values("gpt2", "llama"),
                         [](const auto& each) { return std::string(each.param); });
INSTANTIATE_TEST_SUITE_P(Families, ReturnedBlocks, ::testing::Values("gpt2", "llama"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace cleave::server
