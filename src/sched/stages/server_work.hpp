// What the server computes itself in a step of stages: embeddings, their gradient, the global norm and the update.
//
// The kernels are those of the StepGraph, so they cost what they cost in tiles. Each waits for the gradients and
// kernels that it reads: a parameter's gradient is complete when all of its sources have said so.
#pragma once

#include <unordered_map>
#include <vector>

#include "cleave/model/graph.hpp"
#include "cleave/sched/fleet.hpp"

namespace cleave::sched::stages {

class ServerWork {
 public:
  ServerWork(Fleet& fleet, const model::StepGraph& graph);

  /// Forgets the last step and starts what waits for nothing: embeddings among it.
  void begin();
  /// One more source adds to a parameter's gradient, beside the kernel of the embeddings. Before begin().
  void expect_source(TensorId parameter);
  /// A source of a parameter's gradient has added all that it has.
  void source_done(TensorId parameter);
  /// The gradient of what the lowest stage reads is complete: starts the gradients of the embeddings.
  void residual_gradient_done();
  /// A kernel is done: starts those that waited for it. Returns whether the embeddings of the batch are complete now.
  bool kernel_done(OpId op);
  /// Updates of parameters wait, until release_updates().
  void hold_updates() { held_ = true; }
  void release_updates();
  [[nodiscard]] bool holds_updates() const { return held_; }
  /// Kernels that were started and are not done.
  [[nodiscard]] std::int64_t under_way() const { return under_way_; }
  /// A kernel of a step that was given up is done: nothing follows.
  void done_unused() { --under_way_; }
  /// All kernels of the step are done.
  [[nodiscard]] bool complete() const { return left_ == 0; }
  /// Some embedding is trained, so the lowest stage has to return dX.
  [[nodiscard]] bool trains_embeddings() const { return !embedding_gradients_.empty(); }

 private:
  static bool is_update(const model::Operation& op) { return op.phase == model::Phase::update; }
  void start(const model::Operation& op);
  void start_ready(OpId op);

  Fleet& fleet_;
  const model::StepGraph& graph_;
  std::vector<OpId> first_, embedding_gradients_, updates_;
  std::vector<bool> of_embedding_;                               // operations that make embeddings
  std::unordered_map<std::int64_t, std::int64_t> sources_;       // by parameter: how many add to its gradient
  std::unordered_map<std::int64_t, std::vector<OpId>> readers_;  // by parameter: updates that read its gradient
  std::vector<std::vector<OpId>> followers_;                     // of each operation: updates that wait for it
  std::vector<std::int64_t> waiting_, needed_;           // of each update: inputs that are not there yet; all of them
  std::unordered_map<std::int64_t, std::int64_t> open_;  // by parameter: sources that are not done
  std::int64_t left_ = 0;                                // kernels of the step that are not done
  bool held_ = false;
  std::vector<OpId> ready_;  // updates that are held
  std::int64_t under_way_ = 0;
  std::int64_t embeddings_left_ = 0;
};

}  // namespace cleave::sched::stages
