// Witnesses: visits made again by second devices (docs/security.md, "A second device").
//
// A replica of the same stage takes the operands of the whole visit, in the gaps of its downlink, and returns a digest
// of the answers. It is asked when the last answer is in. Where no replica may be asked, and for a few visits that are
// drawn, the server does it.
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

  /// What is drawn for is numbered from here on in this step.
  [[nodiscard]] std::int64_t draws() const { return draws_; }
  [[nodiscard]] bool is_drawn(std::int64_t subject) const;
  /// Two devices that may be paired.
  [[nodiscard]] bool apart(std::int32_t one, std::int32_t other) const;

  /// No visit waits for a witness, or for its answer.
  [[nodiscard]] bool empty() const { return visits_.empty(); }
  [[nodiscard]] bool has_pairs(std::int32_t s) const;

  /// Places for what is made again: of those for sequences on their way back that a replica could do without, and of
  /// memory that no role has.
  static void keep_slots(Host& host);
  void add_slots();

  /// A visit is through with this tasklet: if it is drawn, a replica of the stage makes it again.
  void visit_done(const Purpose& last, bool back);
  /// The visits of a stage that wait for a witness go to whoever has room.
  void ask(std::int32_t s);
  /// Of all stages: whoever had no room while sequences passed has some now.
  void ask_waiting();
  /// A witness has answered.
  void settle(const Purpose& purpose);
  /// Its device is gone, or will not answer.
  void ask_another(const Purpose& purpose);

  /// When the next of them is late, if only second devices are waited for.
  [[nodiscard]] Seconds late_at() const;
  void replace_late();

 private:
  /// A visit that is done, and is made again by a second device.
  struct Pair {
    std::int32_t stage = 0;
    std::int64_t sequence = 0;
    bool back = false;
    std::int32_t witness = kNobody;  // kNobody: none has room yet
    bool lent = false;               // it has a sequence's place on its device
    std::int64_t attempts = 0;       // of devices
    Seconds since{}, takes{};        // asked; it takes, alone
  };
  bool ask_one(std::int64_t id, Pair& pair);
  Host* draw(std::int64_t id, const Pair& pair, const std::vector<Host*>& able);
  plan::PanelRun run_of(const Pair& pair);
  void send(std::int64_t id, Pair& pair, std::int32_t witness);
  void give_place_back(const Pair& pair);
  [[nodiscard]] Seconds late_at(const Pair& pair) const;

  StageRun& run_;
  std::int64_t draws_ = 0;
  std::map<std::int64_t, Pair> visits_;          // by their numbers in draws
  std::vector<std::set<std::int64_t>> waiting_;  // of each stage: those that no device has room for
  std::vector<double> in_hand_;                  // seconds, of each device
};

}  // namespace cleave::sched::stages
