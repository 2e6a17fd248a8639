// What owning slices of gradients takes of devices: memory, and seconds of their links and processors.
#pragma once

#include <algorithm>
#include <vector>

#include "stages/layout.hpp"
#include "stages/run_book.hpp"

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
  /// Requires: problem and layout outlive it; the layout has stages, with replicas. Its groups may change.
  OwnerCosts(const Problem& problem, const Layout& layout);

  /// Elements of a stage's whole gradient, and its bytes on their way up.
  [[nodiscard]] double elements(std::size_t s) const { return figures_[s]->elements; }
  [[nodiscard]] double sent(std::size_t s) const {
    return layout_.groups[s] == 1 ? figures_[s]->sent : figures_[s]->sums;
  }
  [[nodiscard]] double groups(std::size_t s) const { return static_cast<double>(layout_.groups[s]); }
  /// Share of a stage's sequences that a replica of it runs.
  [[nodiscard]] double visits(std::size_t s, std::size_t device) const { return rates_[s].of(device) / all_rates_[s]; }

  /// What a replica's part in its stage takes of it.
  struct Part {
    double weights = 0;  // seconds of its downlink
    Busy forth, back;
  };
  [[nodiscard]] Part part_of(std::size_t s, std::size_t device) const;
  /// What owning any slice takes, whose group sums over this share of the batch: what a replica ran itself it does not
  /// read. Summing and sending come on top.
  [[nodiscard]] Busy reading(std::size_t s, std::size_t device, bool replica, double of_batch) const {
    const double read = static_cast<double>(work_.batch) * of_batch * (1 - own(s, device, replica, of_batch));
    return {read * figures_[s]->operands / problem_.down[device] + loading(s, device, replica),
            read * figures_[s]->remade / problem_.flops[device]};
  }
  /// Seconds of the device's processor for a whole gradient: as many for a share of it as the share is.
  [[nodiscard]] double summing(std::size_t s, std::size_t device, bool replica, double of_batch) const {
    const double ran = own(s, device, replica, of_batch);
    return static_cast<double>(work_.batch) * of_batch *
           ((1 - ran) * figures_[s]->summed + ran * figures_[s]->summed_beside) / problem_.flops[device];
  }
  /// Of that, seconds of its downlink for weights: of who is no replica.
  [[nodiscard]] double loading(std::size_t s, std::size_t device, bool replica) const {
    return replica ? 0 : figures_[s]->loaded / problem_.down[device];
  }

  /// The longest time that an uplink takes for its sums.
  [[nodiscard]] double sending(const std::vector<OwnerShare>& owners) const;

  /// Bytes of each device that are left for sums beside its part in a stage.
  [[nodiscard]] std::vector<double> room() const;
  /// The share of a gradient that `room` bytes hold; above 1 where they hold more.
  [[nodiscard]] double held(std::size_t s, bool replica, double room) const {
    const OwnerBytes& of = figures_[s]->of_owner[replica ? 1 : 0];
    return (room - of.fixed - of.weights) / of.whole;
  }
  /// Bytes of a share, all told.
  [[nodiscard]] double bytes(std::size_t s, bool replica, double share) const;

 private:
  // Of what a group sums over, the share that the device runs.
  [[nodiscard]] double own(std::size_t s, std::size_t device, bool replica, double of_batch) const {
    return replica ? std::min(1.0, visits(s, device) / of_batch) : 0;
  }

  const Problem& problem_;
  const Layout& layout_;
  const StageWork& work_;
  std::vector<const RunFigures*> figures_;
  std::vector<PassingRate> rates_;  // of each stage
  std::vector<double> all_rates_;   // of its replicas together
};

}  // namespace cleave::plan::stages
