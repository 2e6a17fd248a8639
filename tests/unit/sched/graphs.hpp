// Small graphs, devices and a fleet without time that the scheduler's tests share.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cleave/base/random.hpp"
#include "cleave/sched/forwarding_fleet.hpp"
#include "cleave/sched/scheduler.hpp"
#include "cleave/sched/simulated_fleet.hpp"

namespace cleave::sched {

inline model::Operation gemm(std::int64_t id, GemmShape shape, std::vector<std::int64_t> after = {},
                             model::Phase phase = model::Phase::forward) {
  model::Operation op;
  op.id = OpId(id);
  op.name = op.type = "gemm" + std::to_string(id);
  op.kind = model::OpKind::gemm;
  op.phase = phase;
  op.gemm = shape;
  for (const std::int64_t before : after) op.after.emplace_back(before);
  return op;
}

inline model::Operation attention(std::int64_t id, AttentionShape shape, std::vector<std::int64_t> after = {}) {
  model::Operation op = gemm(id, {}, std::move(after));
  op.kind = model::OpKind::attention_forward;
  op.attention = shape;
  return op;
}

/// A kernel that reads and writes one matrix: 8 bytes of traffic an element.
inline model::Operation kernel(std::int64_t id, std::int64_t rows, std::int64_t cols,
                               std::vector<std::int64_t> after = {}, model::Phase phase = model::Phase::forward) {
  model::Operation op = gemm(id, {}, std::move(after), phase);
  op.kind = model::OpKind::gelu;
  op.in = {{TensorId(0), 0, rows, 0, cols}};
  op.out = {{TensorId(1), 0, rows, 0, cols}};
  return op;
}

inline model::StepGraph graph_of(std::vector<model::Operation> operations) {
  model::StepGraph graph;
  graph.operations = std::move(operations);
  return graph;
}

inline fleet::DeviceProfile device(std::int64_t id, double compute, double down, double up, double latency = 0,
                                   std::int64_t memory = 4'000'000'000) {
  fleet::DeviceProfile profile;
  profile.id = DeviceId(id);
  profile.name = "test";
  profile.compute = FlopsPerSecond(compute);
  profile.memory = Bytes(memory);
  profile.downlink = BytesPerSecond(down);
  profile.uplink = BytesPerSecond(up);
  profile.latency = Seconds(latency);
  return profile;
}

inline fleet::ServerProfile wide_server() {
  return {fleet::kUnlimitedRate, fleet::kUnlimitedRate, FlopsPerSecond(2e12), BytesPerSecond(100e9)};
}

inline SchedulerOptions options_of(plan::Partition partition = plan::Partition::automatic) {
  return {.plan = {.partition = partition, .server = wide_server()}, .wire = DType::f32};
}

/// Devices drawn from `seed`: rates over two orders of magnitude.
inline std::vector<fleet::DeviceProfile> mixed_devices(std::int64_t count, std::uint64_t seed, double latency = 1e-3) {
  return fleet::draw_devices({{.name = "mixed",
                               .count = count,
                               .compute_flops = {1e9, 1e11},
                               .memory_bytes = {2e6, 64e6},
                               .downlink_bytes = {1e6, 1e8},
                               .uplink_bytes = {5e5, 2e7},
                               .latency_s = {0, latency}}},
                             seed);
}

/// The published fleet's rates, with latencies of this range in seconds.
inline std::vector<fleet::DeviceProfile> edge_devices(std::int64_t count, fleet::Range latency) {
  return fleet::draw_devices({{.name = "edge",
                               .count = count,
                               .compute_flops = {5e12, 7e12},
                               .memory_bytes = {1e9, 3e9},
                               .downlink_bytes = {10e6, 100e6},
                               .uplink_bytes = {5e6, 10e6},
                               .latency_s = latency}},
                             3);
}

/// A random DAG of GEMMs, attention and kernels in a legal serial order.
inline model::StepGraph random_graph(std::int64_t operations, std::uint64_t seed) {
  const Random random(seed, Purpose::jitter);
  std::uint64_t draw = 0;
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random.uniform(draw++) * static_cast<double>(end));
  };
  std::vector<model::Operation> all;
  for (std::int64_t id = 0; id < operations; ++id) {
    std::set<std::int64_t> after;
    for (std::int64_t i = below(3); i > 0 && id > 0; --i) after.insert(below(id));
    const std::vector<std::int64_t> before(after.begin(), after.end());
    const auto phase = static_cast<model::Phase>(below(4));
    switch (below(4)) {
      case 0: all.push_back(kernel(id, 1 + below(100), 64, before, phase)); break;
      case 1: all.push_back(attention(id, {1 + below(4), 32, 4, 2, 8}, before)); break;
      default: all.push_back(gemm(id, {1 + below(300), 1 + below(200), 1 + below(2000)}, before, phase));
    }
  }
  return graph_of(std::move(all));
}

/// Counts what was done of each operation and fails on anything done twice, outside its operation, or too early.
class Book {
 public:
  explicit Book(const model::StepGraph& graph) : graph_(graph) {}

  void submitted(const Tasklet& tasklet) { ready(tasklet.op); }
  void started(const model::Operation& kernel) { ready(kernel.id); }
  void kernel_done(OpId op) { EXPECT_TRUE(complete_.insert(op).second) << "kernel " << op.value << " done twice"; }

  void done(const Tasklet& tasklet) {
    const model::Operation& op = graph_.operation(tasklet.op);
    if (op.kind == model::OpKind::gemm) {
      const GemmBox& box = tasklet.piece.box;
      EXPECT_TRUE(0 <= box.m0 && box.m0 < box.m1 && box.m1 <= op.gemm.m);
      EXPECT_TRUE(0 <= box.n0 && box.n0 < box.n1 && box.n1 <= op.gemm.n);
      EXPECT_TRUE(0 <= box.k0 && box.k0 < box.k1 && box.k1 <= op.gemm.k);
      for (const GemmBox& other : boxes_[tasklet.op]) {
        const bool apart = box.m1 <= other.m0 || other.m1 <= box.m0 || box.n1 <= other.n0 || other.n1 <= box.n0 ||
                           box.k1 <= other.k0 || other.k1 <= box.k0;
        EXPECT_TRUE(apart) << "operation " << tasklet.op.value << ": a block was done twice";
      }
      boxes_[tasklet.op].push_back(box);
      volume_[tasklet.op] += box.m() * box.n() * box.k();
      if (volume_[tasklet.op] == op.gemm.m * op.gemm.n * op.gemm.k) complete_.insert(tasklet.op);
    } else {
      for (std::int64_t pair = tasklet.piece.pairs.pair0; pair < tasklet.piece.pairs.pair1; ++pair) {
        EXPECT_TRUE(pairs_[tasklet.op].insert(pair).second) << "a pair was done twice";
      }
      if (std::ssize(pairs_[tasklet.op]) == op.attention.pairs()) complete_.insert(tasklet.op);
    }
  }

  void expect_complete() const { EXPECT_EQ(complete_.size(), graph_.operations.size()); }

 private:
  void ready(OpId id) {
    EXPECT_FALSE(complete_.contains(id)) << "operation " << id.value << " again";
    for (const OpId before : graph_.operation(id).after) {
      EXPECT_TRUE(complete_.contains(before)) << "operation " << id.value << " before " << before.value;
    }
  }

  const model::StepGraph& graph_;
  std::map<OpId, std::vector<GemmBox>> boxes_;
  std::map<OpId, std::int64_t> volume_;
  std::map<OpId, std::set<std::int64_t>> pairs_;
  std::set<OpId> complete_;
};

/// Stands before a fleet and keeps a book of what goes in and what comes out.
class WatchedFleet final : public ForwardingFleet<> {
 public:
  WatchedFleet(Fleet& fleet, Book& book) : ForwardingFleet(fleet), book_(book) {}

  void submit(const Tasklet& tasklet) override {
    if (!tasklet.stays_on_device()) {
      book_.submitted(tasklet);
      tasklets_.emplace(tasklet.id, tasklet);
    }
    ForwardingFleet::submit(tasklet);
  }
  void start(const model::Operation& kernel) override {
    book_.started(kernel);
    ForwardingFleet::start(kernel);
  }
  void forget(TaskletId tasklet) override {
    tasklets_.erase(tasklet);
    ForwardingFleet::forget(tasklet);
  }
  Event next_event(Seconds deadline) override {
    const Event event = ForwardingFleet::next_event(deadline);
    if (event.kind == EventKind::kernel_done) book_.kernel_done(event.op);
    if (event.kind == EventKind::done) {
      const auto found = tasklets_.find(event.tasklet);
      if (found != tasklets_.end()) {
        book_.done(found->second);
        tasklets_.erase(found);
      }
    }
    return event;
  }

 private:
  Book& book_;
  std::map<TaskletId, Tasklet> tasklets_;
};

}  // namespace cleave::sched
