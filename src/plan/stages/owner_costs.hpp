// What replicas and owners of gradient slices cost a device: memory, and seconds of its links and its processor.
#pragma once

#include <algorithm>
#include <vector>

#include "stages/layout.hpp"
#include "stages/run_book.hpp"

namespace cleave::plan::stages {

/// The least share of a gradient for which an owner is worth the boundaries that it must read.
inline constexpr double kLeastShare = 0.01;
/// Factor of bytes of sums on their way, for the headers of their messages.
inline constexpr double kSumHeader = 1 + 2.0 / 95;

/// Seconds of a device's downlink and processor.
struct Busy {
  double down = 0, compute = 0;
};

/// Costs for one layout. `s` is the number of a stage, `device` the index of a device, `of_batch` the share of the
/// batch that an owner group sums over. `replica`: the device is a replica of the stage.
class OwnerCosts {
 public:
  /// Requires: `problem` and `layout` outlive it; the layout's stages have their replicas. Its groups may change later.
  OwnerCosts(const Problem& problem, const Layout& layout);

  /// Elements of a stage's gradient; and the bytes in which one owner group sends it.
  [[nodiscard]] double elements(std::size_t s) const { return figures_[s]->elements; }
  [[nodiscard]] double sent(std::size_t s) const {
    return layout_.groups[s] == 1 ? figures_[s]->sent : figures_[s]->sums;
  }
  [[nodiscard]] double groups(std::size_t s) const { return static_cast<double>(layout_.groups[s]); }
  /// Share of a stage's sequences that a replica of it runs.
  [[nodiscard]] double visits(std::size_t s, std::size_t device) const { return rates_[s].of(device) / all_rates_[s]; }

  /// Seconds that being a replica of a stage takes of a device.
  struct Part {
    double weights = 0;  // downlink, for weights
    Busy forth, back;    // for the sequences that it runs, forward and backward
  };
  [[nodiscard]] Part part_of(std::size_t s, std::size_t device) const;
  /// Seconds that owning any slice takes of a device, whatever its share is: weights, operands and recomputation of the
  /// sequences that it did not run itself. Summing and sending come on top.
  [[nodiscard]] Busy reading(std::size_t s, std::size_t device, bool replica, double of_batch) const {
    const double read = static_cast<double>(work_.batch) * of_batch * (1 - own(s, device, replica, of_batch));
    return {read * figures_[s]->operands / problem_.down[device] + loading(s, device, replica),
            read * figures_[s]->recomputed / problem_.flops[device]};
  }
  /// Seconds of the device's processor for summing a whole gradient. A share of it takes that share of the time.
  [[nodiscard]] double summing(std::size_t s, std::size_t device, bool replica, double of_batch) const {
    const double ran = own(s, device, replica, of_batch);
    return static_cast<double>(work_.batch) * of_batch *
           ((1 - ran) * figures_[s]->summed + ran * figures_[s]->summed_beside) / problem_.flops[device];
  }
  /// The part of reading().down that is for weights of slices; 0 on a replica.
  [[nodiscard]] double loading(std::size_t s, std::size_t device, bool replica) const {
    return replica ? 0 : figures_[s]->loaded / problem_.down[device];
  }

  /// The longest time of any device's uplink for its sums.
  [[nodiscard]] double sending(const std::vector<OwnerShare>& owners) const;

  /// For each device: bytes of memory that its work as a replica leaves for sums.
  [[nodiscard]] std::vector<double> room() const;
  /// The share of a gradient that `room` bytes hold; above 1 where they hold more.
  [[nodiscard]] double held(std::size_t s, bool replica, double room) const {
    const OwnerBytes& of = figures_[s]->of_owner[replica ? 1 : 0];
    return (room - of.fixed - of.weights) / of.whole;
  }
  /// Memory for owning a share of a stage's gradient.
  [[nodiscard]] double bytes(std::size_t s, bool replica, double share) const;

 private:
  // The share of its group's sequences that the device runs itself.
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
