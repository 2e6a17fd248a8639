// The published system's decomposition of a step, for cleave-paper.
//
// One place for what its authors define otherwise than we do (docs/rivals.md gives the source of each choice): the
// projections of attention are one GEMM per sequence, attention's products go through the server one by one per
// sequence and head, and k is never cut (plan::Partition::paper). Everything else of the step stays as it is for
// `cleave`.
#pragma once

#include "cleave/model/graph.hpp"
#include "cleave/sched/scheduler.hpp"

namespace cleave::rivals {

/// The same step with
///   q, k, v, o   [B T x d] [d x d]      ->  B products [T x d] [d x d], forward and both gradients
///   attention    forward                ->  B H products S = Q K^T, then B H products O = P V
///                backward               ->  B H each of dP = dO V^T, dV = P^T dO, dQ = dS K, dK = dS^T Q
/// where the products of one line are the instances of one operation. What the server does between them (softmax, the
/// sum of the sequences' weight gradients) costs nothing. Requires: a graph with one row group.
[[nodiscard]] model::StepGraph publish(const model::StepGraph& merged);

/// Figures of the published scheme that no run shows. Sums over all operations, each alone and perfectly overlapped.
struct PublishedSums {
  Seconds cut;    ///< every product cut over all devices, as published
  Seconds whole;  ///< products with instances dealt out instead, each instance whole to one device
};
[[nodiscard]] PublishedSums sum_operations(const model::StepGraph& published,
                                           std::span<const plan::DeviceState> devices,
                                           const sched::SchedulerOptions& options);

}  // namespace cleave::rivals
