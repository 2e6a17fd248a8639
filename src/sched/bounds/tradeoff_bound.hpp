// The trade-off bound of a step (docs/simulator.md): an operation that is hurried moves more bytes than one that takes
// its time, so a short critical path and few bytes cannot both be had.
//
// Prices per byte turn what operations move into time; a unit flow through the DAG, a mixture of its paths, says how
// much the duration of each operation counts. Any prices and any flow give a valid bound; good ones are searched for.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cleave/model/graph.hpp"
#include "cleave/plan/cost.hpp"

namespace cleave::sched {

/// Devices of one kind, or a class of devices each as good as its best member.
struct BestOfClass {
  double down = 0, up = 0, compute = 0;  ///< bytes and FLOP a second of one device
  double count = 1;
};

/// One shape of operation that runs on devices, and no more than its own least time.
struct ShapeBound {
  plan::Work work;
  double time = 0;
  /// So many operations of this shape may share columns of B that came once; 1: B comes with each.
  double groups = 1;
};

/// Operation by operation: its shape, or what the server takes for it.
struct Node {
  static constexpr std::size_t kKernel = static_cast<std::size_t>(-1);
  std::size_t shape = kKernel;
  double time = 0;  ///< no more than its least time
};

/// A time that no schedule beats, at least `at_least`, which must be such a time itself. `nodes`: of the graph's
/// operations, in order. `down` and `up`: joint rates of all links, finite.
[[nodiscard]] double tradeoff_bound(const model::StepGraph& graph, std::span<const Node> nodes,
                                    std::span<const ShapeBound> shapes, std::span<const BestOfClass> classes,
                                    double down, double up, double at_least);

}  // namespace cleave::sched
