// Candidates: what every device of a step still has to do, and could take over from a device that is lost or late.
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

  /// All devices that are there, in order of their ids.
  std::vector<Candidate> all();
  /// The same with the server before them, where it may stand in for a device.
  std::vector<Candidate> with_server(std::vector<Candidate> devices, std::span<const LostSums> lost);

  /// The server's interface, and for how long these devices' traffic takes it.
  [[nodiscard]] SharedInterface interface_of(std::span<const Candidate> devices) const;

  /// Time that the server needs for an owner's sums.
  [[nodiscard]] Seconds server_takes(const plan::OwnerCost& cost, std::int64_t sequences) const;
  /// Sequences of an owner that its device is sent anyway, for an earlier owner of the stage on it.
  std::int64_t read_for_others(const OwnerState& of);
  /// Seconds until an owner that began during the step has its weights.
  double loading_left(const OwnerState& of);

 private:
  // Whether the server, busy for so long already, has time for what is lost, and for further losses at the rate of now.
  bool server_keeps_up(Seconds busy, std::span<const LostSums> lost);
  // Whether acknowledgements of a device wait behind sums on its uplink, or did until just now.
  [[nodiscard]] bool acknowledges_late(const DeviceBook& on) const;

  StageRun& run_;
};

}  // namespace cleave::sched::stages
