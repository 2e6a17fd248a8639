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
  [[nodiscard]] static Candidate& of_device(std::vector<Candidate>& all, std::int32_t id);
  // All devices that are there, with memory and rates, and nothing to do.
  [[nodiscard]] std::vector<Candidate> idle() const;
  // Adds what sequences have still to do on the replicas of a stage. `left_up`: bytes that these have to send, over
  // `uplink` in all; `passed_in`: seconds until the last sequence has passed.
  void add_visits(std::vector<Candidate>& all, std::int32_t r, double left_up, double uplink, double passed_in);
  // Adds operands of sums that were sent and not acknowledged, or wait to be sent.
  void add_sums_to_read(std::vector<Candidate>& all);
  // Adds what an owner on the device has still to read, to sum and to send beside those.
  void add_owner(Candidate& candidate, const OwnerState& of, double passed_in);
  void take_off_acknowledged(Candidate& of) const;
  // Whether the server, busy for so long already, has time for what is lost, and for further losses at the rate of now.
  bool server_keeps_up(Seconds busy, std::span<const LostSums> lost);
  // Whether acknowledgements of a device wait behind sums on its uplink, or did until just now.
  [[nodiscard]] bool acknowledges_late(const DeviceBook& on) const;

  StageRun& run_;
};

}  // namespace cleave::sched::stages
