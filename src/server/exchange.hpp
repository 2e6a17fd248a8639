// Exchange: carries task messages to the ranks that host devices and their answers back.
//
// It knows which rank hosts which device, keeps a bounded amount of unanswered bytes under way to each rank (operands
// are gathered only when there is room, so the server does not hold every strip of an operation twice), drops answers
// that nobody waits for, and notices ranks that are gone. What an answer means is the fleet's business.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/comm/handshake.hpp"
#include "cleave/comm/transport.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/server/fleets.hpp"

namespace cleave::server {

/// What came back for a tasklet.
struct Answer {
  enum class Kind : std::uint8_t { result, refused, malformed };
  Kind kind = Kind::result;
  sched::Tasklet tasklet;
  comm::Frame frame;   ///< of a result
  std::string reason;  ///< of the others
};

class Exchange {
 public:
  /// Gathers a tasklet's message; called when there is room for it.
  using Pack = std::function<comm::Frame(const sched::Tasklet&)>;

  /// Greets every device rank and tells it its devices (device d on rank 1 + d mod (size - 1)).
  /// Errors: EnvironmentError when a rank refuses or does not answer in time.
  Exchange(comm::Transport& transport, const std::vector<fleet::DeviceProfile>& devices, const FleetTerms& terms,
           Pack pack);

  [[nodiscard]] const std::vector<RankInfo>& ranks() const { return ranks_; }

  void submit(const sched::Tasklet& tasklet);
  void forget(TaskletId tasklet);
  /// Sends what there is room for and takes in what has arrived, waiting at most `at_most` for something.
  [[nodiscard]] std::optional<Answer> next(Seconds at_most);
  /// Devices whose rank was found to be gone since the last call.
  [[nodiscard]] std::vector<DeviceId> take_gone();
  [[nodiscard]] bool is_gone(DeviceId device) const { return peer_of(device).gone; }

  /// Tells every rank to leave and waits for their farewells, at most for `at_most`. False: some are missing.
  bool say_goodbye(Seconds at_most);

 private:
  struct Peer {
    std::vector<DeviceId> devices;
    std::deque<sched::Tasklet> waiting;
    std::int64_t bytes_under_way = 0;
    std::int64_t tasklets_under_way = 0;
    Seconds heard, pinged;
    bool gone = false, farewell = false;
  };
  struct UnderWay {
    sched::Tasklet tasklet;
    int rank = 0;
    std::int64_t bytes = 0;
  };
  [[nodiscard]] int rank_of(DeviceId device) const;
  [[nodiscard]] const Peer& peer_of(DeviceId device) const { return peers_[static_cast<std::size_t>(rank_of(device))]; }
  void greet(const std::vector<fleet::DeviceProfile>& devices, const FleetTerms& terms);
  void pump();
  void watch();
  void lose(int rank);
  [[nodiscard]] std::optional<Answer> take_in(comm::Received received);

  comm::Transport& transport_;
  Pack pack_;
  SteadyClock clock_;
  Seconds patience_;
  std::vector<Peer> peers_;  // by rank; 0 is unused
  std::vector<RankInfo> ranks_;
  std::unordered_map<std::int64_t, UnderWay> under_way_;
  std::vector<DeviceId> gone_;
  std::uint32_t pings_ = 0;
};

}  // namespace cleave::server
