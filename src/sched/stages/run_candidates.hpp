// Candidates: what every device of a step has in hand, and could take over from one that is lost or late.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stages/run_state.hpp"
#include "stages/share_out.hpp"
#include "stages/stand_ins.hpp"

namespace cleave::sched::stages {

struct StageRun;

class Candidates {
 public:
  explicit Candidates(StageRun& run) : run_(run) {}

  /// All devices that are there, in order.
  std::vector<Candidate> all();
  /// And the server before them, where it may stand in for a device.
  std::vector<Candidate> with_server(std::vector<Candidate> devices, std::span<const LostSums> lost);

  /// The server's interface, taken by what these have in hand.
  [[nodiscard]] SharedInterface interface_of(std::span<const Candidate> devices) const;

  /// Time that the server needs for an owner's sums.
  [[nodiscard]] Seconds server_takes(const plan::OwnerCost& cost, std::int64_t sequences) const;
  /// Sequences that come for an owner before it on its device too.
  std::int64_t read_for_others(const OwnerState& of);
  /// Of a device that became an owner since the step began: seconds until its weights are there.
  double loading_left(const OwnerState& of);

 private:
  // Whether the server, busy for so long, has time for what is lost, and for much of what will be if losses go on.
  bool server_keeps_up(Seconds busy, std::span<const LostSums> lost);
  // Whether what a device acknowledges waits for its uplink, or did until now.
  [[nodiscard]] bool acknowledges_late(const DeviceBook& on) const;

  StageRun& run_;
};

}  // namespace cleave::sched::stages
