// Exchange: carries task messages to the ranks that host devices and their answers back.
//
// It knows which rank hosts which device, keeps a bounded amount of unanswered bytes under way to each rank (operands
// are gathered only when there is room, so the server does not hold every strip of an operation twice), drops answers
// that nobody waits for, and notices ranks that are gone. What an answer means is the fleet's business.
//
// No rank is waited for without a limit, whatever it says: what counts is progress of the tasklet whose turn it is, and
// each has a time that no progress extends (watch()). How often messages come changes neither.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cleave/base/clock.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/comm/handshake.hpp"
#include "cleave/comm/transport.hpp"
#include "cleave/sched/fleet.hpp"
#include "cleave/sched/step_spec.hpp"
#include "cleave/server/fleets.hpp"
#include "cleave/server/profile.hpp"
#include "returned_parts.hpp"

namespace cleave::server {

/// What came back for a tasklet.
struct Answer {
  enum class Kind : std::uint8_t {
    result,   ///< a well-formed block
    refused,  ///< the device would not compute it
    lost,     ///< it will not be answered, though its rank lives
    late,     ///< it was forgotten before its block came, which is dropped
  };
  Kind kind = Kind::result;
  sched::Tasklet tasklet;
  comm::Frame frame;   ///< of a result
  std::string reason;  ///< of a refusal
  comm::Reason why = comm::Reason::none;
  Seconds took{};  ///< real time since it was sent
};

class Exchange {
 public:
  /// How tasklets become messages.
  struct Packer {
    /// Makes a tasklet's message for a rank, or that of one part; called when there is room for it.
    std::function<comm::Frame(const sched::Tasklet&, int rank, const comm::MessagePart&)> pack;
    /// The first of the parts in which a tasklet is sent to a rank of another host, to a device that has this much
    /// room for it; none: in one message.
    std::function<comm::MessagePart(const sched::Tasklet&, Bytes room)> first_part;
  };

  /// Greets every device rank and tells it its devices (device d on rank 1 + d mod (size - 1)). A rank that refuses,
  /// dies or is not ready in time is left out: its devices are gone, and ranks() says why.
  /// Errors: EnvironmentError when no rank is left.
  /// `profile` must outlive the exchange.
  Exchange(comm::Transport& transport, const sched::StepSpec& spec, const FleetTerms& terms, Packer packer,
           Profile& profile);

  [[nodiscard]] const std::vector<RankInfo>& ranks() const { return ranks_; }

  void submit(const sched::Tasklet& tasklet);
  /// Whether a device was sent it, or what it answered is here already.
  bool forget(TaskletId tasklet);
  /// Forgets all that the device was asked: it left, and what it answers or keeps of that is lost.
  void forget_all(DeviceId device);
  /// Sends a message that has no answer after what was sent before.
  void send(DeviceId device, comm::Frame frame);
  /// The device may give up the columns that a tasklet brought; they are not sent if they have not been yet.
  void release(TaskletId columns, DeviceId device);
  /// Sends what there is room for and takes in what has arrived, waiting at most `at_most` for something: an answer,
  /// or a rank that goes or comes back.
  [[nodiscard]] std::optional<Answer> next(Seconds at_most);
  /// Devices whose rank died or fell silent since the last call: what they held is lost.
  [[nodiscard]] std::vector<DeviceId> take_gone();
  /// Devices whose silent rank has spoken again since the last call.
  [[nodiscard]] std::vector<DeviceId> take_returned();
  /// Whether what the device held is lost: its rank is dead or silent, or was so since the last take_gone(). A rank
  /// that speaks again within one look was silent all the same: its tasklets are let go and nobody answers them.
  [[nodiscard]] bool is_gone(DeviceId device) const;
  [[nodiscard]] int rank_of(DeviceId device) const;

  /// Tells every rank to leave and waits for their farewells, at most for `at_most`. Returns the ranks that are
  /// missing.
  [[nodiscard]] std::vector<RankInfo> say_goodbye(Seconds at_most);

 private:
  // Of a rank's tasklets under way, the first to be answered: ranks work in the order in which they were asked.
  struct Turn {
    std::int64_t tasklet = -1;
    Seconds began, progress;
  };
  // Memory of a device, and what it keeps of columns that tasklets brought.
  struct Room {
    Bytes memory, columns{0};
  };
  struct Peer {
    explicit Peer(NodePool& nodes) : waiting(&nodes) {}
    std::vector<DeviceId> devices;
    std::pmr::deque<sched::Tasklet> waiting;
    comm::MessagePart part;  // next one of the first that waits, of which others were sent; else none
    std::int64_t bytes_under_way = 0;
    std::int64_t tasklets_under_way = 0;
    std::int64_t answers = 0;  // bytes that it may send for what it was asked, forgotten tasklets included
    Seconds heard, pinged;
    std::int64_t unread = 0;  // bytes that lay before it at the last look
    Seconds took;             // when it last took in some of too many, or had few
    Turn turn;
    bool gone = false;      // dead
    bool silent = false;    // alive for all we know, but nothing comes, or nothing is taken in
    bool farewell = false;  // left as it was told
  };
  struct UnderWay {
    sched::Tasklet tasklet;
    int rank = 0;
    std::int64_t bytes = 0;
    Seconds sent;
    std::int64_t answer = 0;                 // bytes of its messages, at most
    std::int64_t order = 0;                  // in which tasklets were sent
    std::shared_ptr<ReturnedParts> parts{};  // of a tasklet that is sent in parts
  };
  [[nodiscard]] const Peer& peer_of(DeviceId device) const { return peers_[static_cast<std::size_t>(rank_of(device))]; }
  void greet(const sched::StepSpec& spec, const FleetTerms& terms);
  [[nodiscard]] bool takes_answers(int rank) const;
  [[nodiscard]] bool reads(int rank) const;
  void leave_out(int rank, std::string why);
  void pump();
  void send_next(int rank);
  [[nodiscard]] bool may_send(int rank) const;
  void watch();
  void watch_ranks(Seconds now, Seconds pause);
  void watch_tasklets(Seconds now, Seconds pause);
  [[nodiscard]] Seconds allowance(const UnderWay& sent) const;
  void expect(int rank, std::int64_t more);
  void let_go(int rank);
  void take_leave(int rank);
  void give_up_oldest(int rank);
  void give_up(std::int64_t tasklet);
  void close_window(std::int64_t tasklet, bool answer_may_come = false);
  [[nodiscard]] std::optional<comm::Received> poll();
  [[nodiscard]] std::optional<Answer> take_in(comm::Received received);
  [[nodiscard]] std::optional<Answer> take_result(const comm::Header& header, comm::Frame frame);

  comm::Transport& transport_;
  Packer packer_;
  Profile& profile_;
  Clock& clock_;
  Seconds patience_;
  NodePool nodes_;
  std::deque<Peer> peers_;  // by rank; 0 is unused
  std::unordered_map<DeviceId, Room> rooms_;
  // Columns, or what a step in stages keeps, by the tasklet that brought them.
  struct Brought {
    DeviceId device;
    Bytes memory;
  };
  std::unordered_map<TaskletId, Brought> brought_;
  std::vector<RankInfo> ranks_;
  std::pmr::unordered_map<std::int64_t, UnderWay> under_way_{&nodes_};
  std::unordered_map<std::int64_t, UnderWay> forgotten_;  // sent and not answered
  std::vector<const UnderWay*> first_;  // of each rank, while tasklets are looked after; its memory is kept
  std::vector<DeviceId> gone_, returned_;
  std::deque<Answer> lost_;
  Seconds watched_;
  std::int64_t sends_ = 0;
  std::uint32_t pings_ = 0;
  bool leaving_ = false;  // goodbye is said
};

}  // namespace cleave::server
