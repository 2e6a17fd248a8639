// The training step as a chain of units (embedding, layers, head) for systems that place whole layers on devices.
//
// Everything is read off the StepGraph of one sequence, so FLOP, parameters and activations are those that Cleave
// itself is charged for. All figures are per sequence of the batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cleave/base/shapes.hpp"
#include "cleave/base/units.hpp"
#include "cleave/model/config.hpp"
#include "cleave/model/graph.hpp"

namespace cleave::rivals {

struct Unit {
  std::string name;
  std::int64_t parameters = 0;
  double forward_flops = 0, backward_flops = 0;
  double kept_bytes = 0;    ///< of its own activations, those that its backward pass reads again
  double input_bytes = 0;   ///< what the unit before sends; 0 for the first
  double output_bytes = 0;  ///< what it sends to the unit after; 0 for the last
};

struct Workload {
  std::vector<Unit> units;
  std::int64_t tied_parameters = 0;  ///< of the embedding that the head uses too: a copy where both are apart
  std::int64_t element = 4;          ///< bytes of an activation, weight or gradient under way
  std::int64_t batch = 1;

  /// Weight, gradient and Adam's two moments of a parameter: 4+4+4+4 bytes; with 16-bit types 2+2+4+4 and the fp32
  /// master copy 4.
  static constexpr std::int64_t kStateBytes = 16;
  /// What of it must move when a parameter changes its device: all but the gradient.
  [[nodiscard]] std::int64_t moved_bytes() const { return kStateBytes - element; }
  /// FLOP of AdamW per parameter, as model::flops_of counts them.
  static constexpr double kUpdateFlops = model::kUpdateFlops;

  /// Sums over units [first, last).
  [[nodiscard]] std::int64_t parameters(std::size_t first, std::size_t last) const;
  [[nodiscard]] double forward_flops(std::size_t first, std::size_t last) const;
  [[nodiscard]] double backward_flops(std::size_t first, std::size_t last) const;
  /// Activations that the units keep for their backward passes, their inputs among them.
  [[nodiscard]] double kept_bytes(std::size_t first, std::size_t last) const;
  /// Inputs of the units: what stays when activations are computed again in the backward pass.
  [[nodiscard]] double input_bytes(std::size_t first, std::size_t last) const;
  [[nodiscard]] double largest_kept_bytes(std::size_t first, std::size_t last) const;
  [[nodiscard]] std::int64_t total_parameters() const;  ///< tied weights once
  /// Bytes of all weights with gradients and moments.
  [[nodiscard]] double state_bytes() const { return static_cast<double>(total_parameters() * kStateBytes); }
  /// FLOP of the whole batch, forward and backward, without recomputation.
  [[nodiscard]] double step_flops() const;
};

/// What a layer is: one unit, or its attention half and its MLP half.
enum class Granularity : std::uint8_t { layers, halves };

/// Units: "embedding", "layer 0", ..., "head"; with halves "attention 0", "mlp 0", ... in place of layers.
/// Requires: model::find_faults(config) is empty, batch >= 1.
[[nodiscard]] Workload describe_workload(const model::ModelConfig& config, std::int64_t batch, DType wire,
                                         Granularity granularity = Granularity::layers);

/// `units` cut into `stages` runs, so that the stage with most FLOP has as few as possible and, among those cuts, the
/// stage with most parameters as few as possible. Returns stages+1 boundaries. Requires: 1 <= stages <= units.
[[nodiscard]] std::vector<std::size_t> cut_evenly(const Workload& workload, std::size_t stages);

}  // namespace cleave::rivals
