// Losses: what each loss of blocks cost, from the silence of a device to the last block that was computed again.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cleave/sched/scheduler.hpp"

namespace cleave::sched {

class Losses {
 public:
  void clear() { open_.clear(); }

  /// Opens the record of blocks of an operation that were lost; returns its number.
  int open(OpId op, std::string name, Seconds noticed, Seconds detection, std::int64_t devices, std::int64_t blocks) {
    Loss loss;
    loss.op = op;
    loss.name = std::move(name);
    loss.at = noticed;
    loss.detection = detection;
    loss.devices = devices;
    loss.blocks = blocks;
    open_.push_back(loss);
    return static_cast<int>(open_.size()) - 1;
  }
  void planned(int loss, Seconds real) { open_[index(loss)].planning += real; }

  /// A block that makes good `loss` is back; its operands took `down` to be sent.
  void answered(int loss, Seconds now, Seconds down) {
    Loss& l = open_[index(loss)];
    l.resending = std::max(l.resending, std::min(down, now - l.at));
    l.recomputing = std::max(Seconds(0), now - l.at - l.resending);
  }

  /// The operation is complete; without losses it would have been at `undisturbed`. Returns the time that they added.
  Seconds complete(OpId op, Seconds start, Seconds now, Seconds undisturbed) {
    const Seconds added = std::max(Seconds(0), now - undisturbed);
    for (Loss& l : open_) {
      if (l.op != op) continue;
      l.operation = undisturbed - start;
      l.added = added;
    }
    return added;
  }

  [[nodiscard]] const std::vector<Loss>& all() const { return open_; }
  /// What was hit took this long, and ended that much later than without losses.
  void weigh(std::size_t loss, Seconds operation, Seconds added) {
    open_[loss].operation = operation;
    open_[loss].added = added;
  }

 private:
  static std::size_t index(int loss) { return static_cast<std::size_t>(loss); }
  std::vector<Loss> open_;
};

}  // namespace cleave::sched
