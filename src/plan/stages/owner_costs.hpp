// What owning slices of gradients takes of devices: memory, and seconds of their links and processors.
#pragma once

#include <vector>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

/// Below, an owner is not worth its boundaries.
inline constexpr double kLeastShare = 0.01;
/// Of sums on their way, with the headers of their messages.
inline constexpr double kSumHeader = 1 + 2.0 / 95;

/// Seconds of a device's downlink and processor.
struct Busy {
  double down = 0, compute = 0;
};

class OwnerCosts {
 public:
  /// Requires: problem and layout outlive it; the layout has roles, with replicas. Its groups may change.
  OwnerCosts(const Problem& problem, const Layout& layout);

  /// Elements of a stage's whole gradient, and its bytes on their way up.
  [[nodiscard]] double elements(std::size_t s) const { return layout_.roles[s].cost.gradient_elements(); }
  [[nodiscard]] double sent(std::size_t s) const;
  [[nodiscard]] double groups(std::size_t s) const { return static_cast<double>(layout_.groups[s]); }
  /// Share of a stage's sequences that a replica of it runs.
  [[nodiscard]] double visits(std::size_t s, std::size_t device) const { return problem_.up[device] / uplinks_[s]; }

  /// What a replica's part in its stage takes of it.
  struct Part {
    double weights = 0;  // seconds of its downlink
    Busy forth, back;
  };
  [[nodiscard]] Part part_of(std::size_t s, std::size_t device) const;
  /// What owning any slice takes, whose group sums over this share of the batch: what a replica ran itself it does not
  /// read. Sending its sums comes on top.
  [[nodiscard]] Busy reading(std::size_t s, std::size_t device, bool replica, double of_batch) const;
  /// Of that, seconds of its downlink for weights: of who is no replica.
  [[nodiscard]] double loading(std::size_t s, std::size_t device, bool replica) const;

  /// The longest time that an uplink takes for its sums.
  [[nodiscard]] double sending(const std::vector<Owned>& owners) const;

  /// Bytes of each device that are left for sums beside its part in a stage.
  [[nodiscard]] std::vector<double> room() const;
  /// The share of a gradient that `room` bytes hold; above 1 where they hold more.
  [[nodiscard]] double held(std::size_t s, bool replica, double room) const;
  /// Bytes of a share, all told.
  [[nodiscard]] double bytes(std::size_t s, bool replica, double share) const;

 private:
  // Bytes that an owner takes whatever its share is, and those of a whole gradient that grow with it.
  [[nodiscard]] double fixed(std::size_t s, bool replica) const;
  [[nodiscard]] double of_all(std::size_t s, bool replica) const;
  // Pieces of the stage are more than one: a slice of it may need all of its weights, wherever it lies.
  [[nodiscard]] bool several_pieces(std::size_t s) const;
  // Of who is no replica: weights for a slice.
  [[nodiscard]] double weights_beside(std::size_t s, double share) const;
  struct Waiting {
    double fixed = 0, of_all = 0;
  };
  [[nodiscard]] OwnerCost cost_of_share(const StageCost& stage, double from, double to) const;
  void reach_pieces(const Role& role, std::int64_t pieces);
  [[nodiscard]] double parts_of_heads(std::size_t s) const;

  const Problem& problem_;
  const Layout& layout_;
  const StageWork& work_;
  std::vector<OwnerCost> typical_;   // of each stage
  std::vector<Waiting> waiting_[2];  // of each stage, of an owner that is no replica of it and of one that is
  std::vector<double> rounding_;     // of each stage
  std::vector<double> uplinks_;      // of each stage's replicas together
};

}  // namespace cleave::plan::stages
