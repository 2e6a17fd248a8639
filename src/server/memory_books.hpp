// What of a step's memory comes and goes: messages, tensors and partial sums. A forecast keeps these books along a
// simulated run.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cleave/base/block_pool.hpp"
#include "cleave/comm/frame_size.hpp"
#include "cleave/plan/panels.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/server/memory_forecast.hpp"
#include "tensor_lifetimes.hpp"
#include "window.hpp"

namespace cleave::server {

/// Memory that ranks of one host share is taken in huge pages, by each rank its own.
constexpr std::int64_t in_huge_pages(std::int64_t bytes) {
  constexpr auto kPage = static_cast<std::int64_t>(kHugePage);
  if (bytes < kPage) return bytes;  // of the first one no more than what is used
  return (bytes + kPage - 1) / kPage * kPage;
}

/// Messages under way, as Exchange has them.
class MessageBooks {
 public:
  explicit MessageBooks(DeviceRanks ranks)
      : shares_memory_(std::move(ranks.shares_memory)), ranks_(shares_memory_.size()) {}

  /// `in_place`: operands are read where the server keeps them, by whoever shares memory with it.
  void sent(const sched::Tasklet& tasklet, bool in_place = false) {
    const plan::TaskletPlan& piece = tasklet.piece;
    const std::size_t to = index_of(piece.device);
    const Bytes task = in_place && shares_memory_[to] ? plan::kMessageHeader : piece.bytes_down;
    const UnderWay of{to, task.value(), piece.bytes_up.value()};
    under_way_[tasklet.id] = of;
    Rank& rank = ranks_[of.rank];
    const std::size_t kind = comm::frame_kind(of.task);
    rank.tasks[kind] += comm::frame_memory(of.task);
    std::int64_t& results = comm::is_large_frame(of.result) ? rank.results : small_results_;
    results += of.result;
    rank.results_peak = std::max(rank.results_peak, rank.results);
    small_results_peak_ = std::max(small_results_peak_, small_results_);
    largest_ = std::max({largest_, of.task, of.result});
    std::int64_t tasks = 0;
    for (const Rank& each : ranks_) tasks += most_under_way(each.tasks[kind], largest_);
    tasks_peaks_[kind] = std::max(tasks_peaks_[kind], tasks);
  }
  /// Of a message that nobody answers and that is sent alone.
  void sent_unanswered(Bytes bytes) { largest_ = std::max(largest_, bytes.value()); }
  /// Of one that is sent with others of its kind, all at once.
  void sent_unanswered(Bytes bytes, DeviceId to) {
    sent_unanswered(bytes);
    Together& together = ranks_[index_of(to)].unanswered[comm::frame_kind(bytes.value())];
    const std::int64_t memory = comm::frame_memory(bytes.value());
    together.sum += memory;
    together.largest = std::max(together.largest, memory);
  }
  void answered(TaskletId tasklet) {
    const auto found = under_way_.find(tasklet);
    if (found == under_way_.end()) return;
    Rank& rank = ranks_[found->second.rank];
    const std::int64_t task = found->second.task;
    rank.tasks[comm::frame_kind(task)] -= comm::frame_memory(task);
    (comm::is_large_frame(found->second.result) ? rank.results : small_results_) -= found->second.result;
    under_way_.erase(found);
  }
  /// What is needed at most, each kind for itself.
  [[nodiscard]] Bytes peak() const {
    std::int64_t sum = small_results_peak_;
    for (std::size_t kind = 0; kind < comm::kFrameKinds; ++kind) {
      const std::int64_t tasks = std::max(tasks_peaks_[kind], unanswered_peak(kind));
      sum += kind + 1 == comm::kFrameKinds ? in_huge_pages(tasks) : tasks;
    }
    for (const Rank& rank : ranks_) sum += in_huge_pages(rank.results_peak);
    return Bytes(sum);
  }

 private:
  struct Together {
    std::int64_t sum = 0, largest = 0;  // bytes of memory
  };
  struct UnderWay {
    std::size_t rank = 0;
    std::int64_t task = 0, result = 0;  // bytes
  };
  // What is under way to and from one rank. Results may be there long before their turn has come, and each rank writes
  // large ones in memory of its own, which is kept.
  struct Rank {
    std::array<std::int64_t, comm::kFrameKinds> tasks{};   // by kind of frame
    std::array<Together, comm::kFrameKinds> unanswered{};  // likewise
    std::int64_t results = 0, results_peak = 0;
  };
  // Who shares memory reads small ones while the next are written, at about that pace: half of them are there at once.
  // From a huge page on the reader, to whose process those pages are new, is slower. Others have theirs carried, later
  // than they are written.
  [[nodiscard]] std::int64_t unanswered_peak(std::size_t kind) const {
    std::int64_t sum = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Together& of = ranks_[rank].unanswered[kind];
      const bool at_pace = shares_memory_[rank] && of.largest < static_cast<std::int64_t>(kHugePage);
      sum += at_pace ? std::max(of.largest, of.sum / 2) : of.sum;
    }
    return sum;
  }
  [[nodiscard]] std::size_t index_of(DeviceId device) const {
    return static_cast<std::size_t>(rank_of(device, static_cast<int>(ranks_.size())) - 1);
  }

  std::map<TaskletId, UnderWay> under_way_;
  std::vector<bool> shares_memory_;
  std::vector<Rank> ranks_;
  std::array<std::int64_t, comm::kFrameKinds> tasks_peaks_{};
  std::int64_t small_results_ = 0, small_results_peak_ = 0, largest_ = 0;
};

/// Whether operands of an operation in tiles can be read where they are, as Gather has it: they lie in memory of their
/// own, are not rounded, and nobody may see which blocks are looked at.
class PlacesOfOperands {
 public:
  PlacesOfOperands(const TrainerOptions& options, const model::StepGraph& graph) : graph_(graph) {
    const VerifyMode mode = options.executor.verification.mode;
    plain_ = options.wire == DType::f32 && (mode == VerifyMode::off || mode == VerifyMode::quorum);
  }
  [[nodiscard]] bool in_place(const sched::Tasklet& tasklet) const {
    if (!plain_ || tasklet.is_run() || tasklet.columns.valid()) return false;
    return std::ranges::all_of(graph_.operation(tasklet.op).in, [&](const model::TensorView& view) {
      return comm::is_large_frame(graph_.tensor(view.tensor).elements() * size_of(DType::f32));
    });
  }

 private:
  const model::StepGraph& graph_;
  bool plain_ = false;
};

/// Tensors and partial sums that operations have, as TensorStore and Workspace keep them.
class TensorBooks {
 public:
  TensorBooks(const model::StepGraph& graph, DType wire)
      : graph_(graph), wire_(wire), lifetimes_(graph), alive_(graph.tensors.size(), false) {}
  /// As TensorStore::run_only(). `elsewhere`: what others count.
  void run_only(std::span<const OpId> operations, std::span<const TensorId> held, std::span<const TensorId> elsewhere) {
    lifetimes_.begin_part(operations, held);
    for (const TensorId id : elsewhere) alive_[static_cast<std::size_t>(id.value)] = true;
    elsewhere_.assign(elsewhere.begin(), elsewhere.end());
  }

  void begin(const model::Operation& op) {
    lifetimes_.begin(op, [&](TensorId id) { need(id); });
    note();
  }
  void need(TensorId id) {
    const auto at = static_cast<std::size_t>(id.value);
    if (alive_[at]) return;
    alive_[at] = true;
    grow(tensor_bytes_, tensor_peak_, bytes_of(id));
  }
  void drop(TensorId id) {
    if (!alive_[static_cast<std::size_t>(id.value)] || std::ranges::find(elsewhere_, id) != elsewhere_.end()) return;
    alive_[static_cast<std::size_t>(id.value)] = false;
    tensor_bytes_ -= bytes_of(id);
  }
  /// A block of a product is asked for.
  void ask(const model::Operation& op, const GemmBox& box) {
    begin(op);
    if (op.kind == model::OpKind::gemm && (box.k0 > 0 || box.k1 < op.gemm.k)) {
      std::int64_t& sum = sums_[op.id];
      if (sum == 0) {
        sum = op.gemm.m * op.gemm.n * size_of(partial_sum_type(wire_));
        grow(sum_bytes_, sum_peak_, sum);
      }
      // Finished blocks are converted one at a time, when the operation retires.
      if (box.k0 == 0) largest_finished_ = std::max(largest_finished_, box.m() * box.n() * 4);
    }
    note();
  }
  void retire(const model::Operation& op) {
    const auto sum = sums_.find(op.id);
    if (sum != sums_.end()) {
      sum_bytes_ -= sum->second;
      sums_.erase(sum);
    }
    lifetimes_.retire(op, [&](TensorId tensor) { drop(tensor); });
  }

  [[nodiscard]] Bytes tensors() const { return Bytes(tensor_peak_); }
  [[nodiscard]] Bytes sums() const { return Bytes(sum_peak_ + largest_finished_); }
  [[nodiscard]] Bytes pool() const { return Bytes(pool_peak_); }

 private:
  [[nodiscard]] std::int64_t bytes_of(TensorId id) const { return graph_.tensor(id).elements() * 4; }
  static void grow(std::int64_t& total, std::int64_t& peak, std::int64_t by) {
    total += by;
    peak = std::max(peak, total);
  }
  void note() {
    pool_peak_ = std::max(pool_peak_, tensor_bytes_ + sum_bytes_ + (sums_.empty() ? 0 : largest_finished_));
  }

  const model::StepGraph& graph_;
  DType wire_;
  TensorLifetimes lifetimes_;
  std::vector<bool> alive_;
  std::vector<TensorId> elsewhere_;
  std::unordered_map<OpId, std::int64_t> sums_;
  std::int64_t tensor_bytes_ = 0, tensor_peak_ = 0, sum_bytes_ = 0, sum_peak_ = 0, largest_finished_ = 0;
  std::int64_t pool_peak_ = 0;
};

}  // namespace cleave::server
