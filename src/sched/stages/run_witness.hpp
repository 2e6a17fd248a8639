// Witnesses: second devices that make visits again (docs/security.md, "A second device").
//
// When the last result of a drawn visit is in, another replica of the stage is sent all its operands, in the gaps of
// that replica's downlink, and returns a digest of the results. Where no replica may be asked, and for a few visits
// that are drawn for it, the server is the witness.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "cleave/plan/panels.hpp"
#include "stages/run_state.hpp"

namespace cleave::sched::stages {

struct StageRun;

class Witnesses {
 public:
  explicit Witnesses(StageRun& run) : run_(run) {}

  void begin();

  /// The number of this step's first subject: visits and owners that may be drawn are numbered from here on.
  [[nodiscard]] std::int64_t draws() const { return draws_; }
  [[nodiscard]] bool is_drawn(std::int64_t subject) const;
  /// Whether one device may be the other's witness: collusion.hpp.
  [[nodiscard]] bool apart(std::int32_t one, std::int32_t other) const;

  /// No visit waits for a witness, or for its answer.
  [[nodiscard]] bool empty() const { return visits_.empty(); }
  [[nodiscard]] bool has_pairs(std::int32_t s) const;

  /// Sets slots of a replica aside for visits recomputed: backward slots beyond the least number.
  static void keep_slots(ActiveReplica& replica);
  /// Gives replicas such slots from memory that no role takes.
  void add_slots();

  /// A visit ended with this tasklet: if it is drawn, a witness makes it again.
  void visit_done(const Purpose& last, bool back);
  /// Visits of a stage that wait for a witness get one where a replica has a slot.
  void ask(std::int32_t s);
  /// The same for all stages: replicas that had no slots while sequences passed may have some now.
  void ask_waiting();
  /// A witness has answered.
  void settle(const Purpose& purpose);
  /// The device of a witness is gone, or will not answer: another one is asked.
  void ask_another(const Purpose& purpose);

  /// When the next witness is late; infinite while anything else than second devices is waited for.
  [[nodiscard]] Seconds late_at() const;
  void replace_late();

 private:
  /// A visit that is done, and is recomputed by a second device.
  struct Pair {
    std::int32_t stage = 0;
    std::int64_t sequence = 0;
    bool back = false;
    std::int32_t witness = kNobody;  // kNobody: none has a slot yet
    bool lent = false;               // it has a sequence's slot, since its device has none for witnesses
    std::int64_t attempts = 0;       // devices that were asked
    Seconds since{}, takes{};        // when it was asked; how long it takes on an idle device
  };
  void add_waiting(std::int32_t s, std::int64_t id);
  bool has_room(std::int32_t s);
  bool ask_one(std::int64_t id, Pair& pair);
  ActiveReplica* draw(std::int64_t id, const Pair& pair, const std::vector<ActiveReplica*>& able);
  plan::PanelRun run_of(const Pair& pair);
  void send(std::int64_t id, Pair& pair, std::int32_t witness);
  void give_place_back(const Pair& pair);
  [[nodiscard]] Seconds late_at(const Pair& pair) const;

  StageRun& run_;
  std::int64_t draws_ = 0;
  std::map<std::int64_t, Pair> visits_;              // drawn visits that are not settled, by their numbers
  std::vector<std::set<std::int64_t>> waiting_;      // of each stage: visits that wait for a witness
  std::vector<std::set<std::int64_t>> unasked_;      // of these, those that were not asked for since replicas changed
  std::vector<std::vector<std::int32_t>> replicas_;  // of each stage: devices that were its replicas then
  std::vector<double> in_hand_;                      // of each device: seconds of visits that it is to recompute
};

}  // namespace cleave::sched::stages
