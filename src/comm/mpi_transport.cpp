// The transport over MPI between ranks of one host, point to point only, written for ranks that may stop or die at any
// moment.
//
// A request to or from a dead rank never completes, so nothing here waits on one: sends and receives are non-blocking,
// own their frames, and are tested whenever the owner polls. Waiting sleeps, since MPI's own waiting burns a core; who
// sends wakes the receiver over the side channel (liveness.hpp). Large frames between ranks that share memory stay
// where they are, and only a notice of them goes through MPI (shared_link.hpp).
#include <fmt/format.h>
#include <mpi.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <deque>
#include <list>
#include <utility>
#include <vector>

#include "batch.hpp"
#include "cleave/base/clock.hpp"
#include "cleave/base/error.hpp"
#include "cleave/base/kept_memory.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/comm/mpi.hpp"
#include "liveness.hpp"
#include "mpi_error.hpp"
#include "mpi_meeting.hpp"
#include "mpi_messages.hpp"
#include "stream_transport.hpp"

namespace cleave::comm {

namespace {

// Messages are received in their order, whatever their tag: it only tells a frame from a notice of one, and from a
// batch (batch.hpp) of both.
constexpr int kFrameTag = 1, kNoticeTag = 2, kBatchTag = 3;

// Frames of at most so many bytes share a message if they follow another one to the same rank within this time: what
// each message costs is as much as copying it. The first goes at once, so that who waits for it does not wait longer.
constexpr std::int64_t kSmall = 8 << 10;
constexpr Seconds kSoon{100e-6};

// The longest sleep between two looks at MPI: a share of the time since anything last went through, so that sleeping
// adds little to any wait, between two limits. Where the side channel wakes whoever waits, the upper limit is only what
// a lost wake costs; where something is under way, or a peer cannot wake us, messages are found by looking alone.
constexpr Seconds kShortestNap{20e-6}, kLongestNap{1e-3}, kLongestNapWithWake{20e-3};
constexpr double kNapShare = 1.0 / 16, kNapShareWithWake = 1.0;

// Who was woken so recently still looks often, or is at work and will look before it sleeps.
constexpr Seconds kAwake{100e-6};

// The kernel may end a sleep later by this much, instead of by its usual 50 us.
constexpr unsigned long kTimerSlackNanoseconds = 2000;

// While something is under way the naps stay short, because transfers move only while somebody looks. A transfer slower
// than this rate, with this much patience before, is taken for one to a rank that hangs, and naps grow again.
constexpr double kSlowestTransfer = 100e6;
constexpr Seconds kTransferPatience{0.05};

// What a rank had not sent whole when it died will not come; until then it may be on its way.
constexpr Seconds kLastBytes{2};

// How often the connections that show deaths are looked at.
constexpr Seconds kLivenessInterval{5e-3};

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(Meeting meeting)
      : comm_(meeting.comm),
        rank_(meeting.rank),
        size_(meeting.size),
        liveness_(meeting.liveness),
        links_(std::move(meeting.links)),
        all_share_memory_(std::count(links_.begin(), links_.end(), nullptr) <= 1) {  // there is none to itself
    outgoing_.resize(static_cast<std::size_t>(size_));
    incoming_.resize(static_cast<std::size_t>(size_));
    abandoned_.resize(static_cast<std::size_t>(size_), false);
    pending_bytes_.resize(static_cast<std::size_t>(size_), 0);
    woken_.resize(static_cast<std::size_t>(size_), Seconds(-1));
    found_gone_.resize(static_cast<std::size_t>(size_), false);
    gone_at_.resize(static_cast<std::size_t>(size_), Seconds(-1));
    interrupts_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (interrupts_ < 0) throw EnvironmentError("eventfd", "the transport", std::strerror(errno));
    prctl(PR_SET_TIMERSLACK, kTimerSlackNanoseconds, 0, 0, 0);
  }

  // Frames of requests that never completed stay in memory: MPI may still look at them.
  ~MpiTransport() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0) {
      try {
        if (!closed_) flush();
      } catch (const EnvironmentError&) {}  // as lost as what is under way now
      MpiTransport::progress_sends(/*may_throw=*/false);
    }
    for (Send& send : sends_) new Frame(std::move(send.frame));
    for (Receive& receive : receives_) {
      if (!receive.done) new Frame(std::move(receive.frame));
    }
    keep_what_is_lent(std::move(links_));
    ::close(interrupts_);
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  void send(int dest, Frame frame) override {
    CLEAVE_ASSERT(!closed_ && dest >= 0 && dest < size_ && frame.size() <= kMaxFrameBytes, "{} bytes to rank {}",
                  frame.size(), dest);
    if (abandoned_[static_cast<std::size_t>(dest)]) {
      ++stats_.sends_dropped;
      return;
    }
    ++stats_.frames_sent;
    stats_.bytes_sent += frame.size();
    const std::unique_ptr<SharedLink>& link = links_[static_cast<std::size_t>(dest)];
    const auto notice = link ? link->lend(frame) : std::nullopt;
    if (notice) {
      ++stats_.frames_shared;
      Frame message(sizeof *notice);
      std::memcpy(message.data(), &*notice, sizeof *notice);
      send_in_turn(dest, kNoticeTag, std::move(message));
    } else {
      send_in_turn(dest, kFrameTag, seal_payload(std::move(frame)));
    }
  }

  std::optional<Received> poll() override { return look(1); }

  // Between ranks that share memory nothing moves but notices, at once.
  void progress() override {
    flush();
    if (all_share_memory_) return;
    progress_sends(/*may_throw=*/true);
    match(1);
  }

  std::optional<Received> wait(Seconds at_most) override {
    const Seconds deadline = clock_.now() + at_most;
    while (true) {
      if (auto received = look(2)) return received;
      if (std::exchange(woken_up_, false)) {
        liveness_->look();
        continue;  // whoever sends from now on wakes again; who did before has sent already
      }
      const Seconds now = clock_.now();
      if (now >= deadline) return std::nullopt;
      if (sleep(std::min(nap(now), deadline - now))) return std::nullopt;
    }
  }

  void interrupt() override {
    const std::uint64_t one = 1;
    (void)!::write(interrupts_, &one, sizeof one);
  }

  [[nodiscard]] std::optional<std::int64_t> reached(int dest, const void* data) const override {
    const std::unique_ptr<SharedLink>& link = links_[static_cast<std::size_t>(dest)];
    return link ? link->offset_of(static_cast<const std::byte*>(data)) : std::nullopt;
  }

  [[nodiscard]] bool shares_memory(int rank) const override {
    return links_[static_cast<std::size_t>(rank)] != nullptr;
  }

  [[nodiscard]] bool gone(int rank) const override { return liveness_->gone(rank); }

  [[nodiscard]] PeerProcess process(int rank) const override { return liveness_->process(rank); }

  [[nodiscard]] std::int64_t bytes_pending(int rank) const override {
    return pending_bytes_[static_cast<std::size_t>(rank)];
  }

  void expect(int rank, std::int64_t bytes) override {
    incoming_[static_cast<std::size_t>(rank)].most_bytes = std::clamp(bytes, kUnasked, kMostBytes);
  }

  void abandon(int rank) override { abandoned_[static_cast<std::size_t>(rank)] = true; }

  bool close(Seconds at_most) override {
    const Seconds deadline = clock_.now() + at_most;
    flush();
    while (true) {
      progress_sends(/*may_throw=*/true);
      // Taking in what still comes lets peers complete their sends to us, and so ours to them.
      match(1);
      while (take()) {}
      const bool flushed = pending_sends() == 0;
      if (flushed || clock_.now() >= deadline) {
        closed_ = true;
        return flushed;
      }
      clock_.sleep_until(clock_.now() + kShortestNap);
    }
  }

  [[nodiscard]] TransportStats stats() const override {
    TransportStats stats = stats_;
    stats.sends_pending = pending_sends();
    for (const auto& link : links_) {
      if (link) stats.bytes_lent += link->lent_bytes();
    }
    return stats;
  }

 private:
  // A small frame soon after another waits for those that follow; everything that waits goes before what does not.
  void send_in_turn(int dest, int tag, Frame frame) {
    Outgoing& outgoing = outgoing_[static_cast<std::size_t>(dest)];
    const bool small = frame.size() <= kSmall;
    if (!small || !outgoing.batch.has_room_for(frame)) flush(dest);
    const Seconds now = clock_.now();
    if (small && (!outgoing.batch.empty() || now - outgoing.last < kSoon)) {
      if (outgoing.batch.empty()) waiting_.push_back(dest);
      outgoing.batch.add(std::move(frame), tag == kNoticeTag);
    } else {
      outgoing.last = now;
      start_send(dest, tag, std::move(frame));
    }
  }

  void flush() {
    while (!waiting_.empty()) flush(waiting_.back());
  }
  void flush(int dest) {
    Outgoing& outgoing = outgoing_[static_cast<std::size_t>(dest)];
    if (outgoing.batch.empty()) return;
    std::erase(waiting_, dest);
    outgoing.last = clock_.now();
    if (outgoing.batch.count() == 1) {
      auto [frame, notice] = outgoing.batch.take_only();
      start_send(dest, notice ? kNoticeTag : kFrameTag, std::move(frame));
    } else {
      ++stats_.batches_sent;
      start_send(dest, kBatchTag, outgoing.batch.take());
    }
  }

  void start_send(int dest, int tag, Frame frame) {
    const std::int64_t bytes = frame.size();
    Send& send = sends_.emplace_back(Send{dest, MPI_REQUEST_NULL, std::move(frame)});
    pending_bytes_[static_cast<std::size_t>(dest)] += bytes;
    check_mpi(MPI_Isend(send.frame.data(), static_cast<int>(bytes), MPI_BYTE, dest, tag, comm_, &send.request),
              "MPI_Isend", fmt::format("rank {}", dest));
    started(bytes);
    wake(dest);
  }

  void look_for_deaths() {
    const Seconds now = clock_.now();
    if (now - looked_ < kLivenessInterval) return;
    looked_ = now;
    liveness_->look();
    drop_dead_links();
    give_up_the_dead(now);
  }

  // MPI may still write to a frame that is given up, so it stays in memory; nothing else waits for it.
  void give_up_the_dead(Seconds now) {
    for (auto receive = receives_.begin(); receive != receives_.end();) {
      Seconds& gone = gone_at_[static_cast<std::size_t>(receive->source)];
      if (gone < Seconds(0) && liveness_->gone(receive->source)) gone = now;
      if (receive->done || gone < Seconds(0) || now - gone < kLastBytes) {
        ++receive;
        continue;
      }
      forget(*receive);
      new Frame(std::move(receive->frame));
      receive = receives_.erase(receive);
    }
  }

  // What was lent to a process that is gone is free. Its own memory is let go once no message of it is left, as was
  // seen since it was found to be gone.
  void drop_dead_links() {
    for (std::size_t rank = 0; rank < links_.size(); ++rank) {
      if (!links_[rank] || !liveness_->gone(static_cast<int>(rank))) continue;
      const auto from_it = [&](const Receive& receive) { return receive.source == static_cast<int>(rank); };
      if (!found_gone_[rank]) {
        found_gone_[rank] = true;
      } else if (drained_ && std::none_of(receives_.begin(), receives_.end(), from_it)) {
        links_[rank].reset();
      }
    }
    drained_ = false;
  }

  void wake(int dest) {
    Seconds& woken = woken_[static_cast<std::size_t>(dest)];
    if (woken >= Seconds(0) && active_ - woken < kAwake) return;
    woken = active_;
    liveness_->wake(dest);
  }

  [[nodiscard]] Seconds nap(Seconds now) const {
    if (busy(now)) return kShortestNap;
    if (liveness_->complete() && sends_.empty() && receives_.empty()) {
      return std::clamp((now - active_) * kNapShareWithWake, kShortestNap, kLongestNapWithWake);
    }
    return std::clamp((now - active_) * kNapShare, kShortestNap, kLongestNap);
  }

  // Until somebody wakes this rank, for `at_most`. True: it was interrupted.
  bool sleep(Seconds at_most) {
    std::array<pollfd, 3> events{{{interrupts_, POLLIN, 0},
                                  {liveness_->bell(), POLLIN, 0},  // -1 is passed over
                                  {liveness_->descriptor(), POLLIN, 0}}};
    timespec rest{};
    rest.tv_sec = static_cast<time_t>(at_most.value());
    rest.tv_nsec = static_cast<long>((at_most.value() - static_cast<double>(rest.tv_sec)) * 1e9);
    if (::ppoll(events.data(), events.size(), &rest, nullptr) <= 0) return false;
    if (events[1].revents != 0 || events[2].revents != 0) {
      woken_up_ = true;
      active_ = clock_.now();  // what was announced may be a little later than its announcement
    }
    std::uint64_t count = 0;
    return events[0].revents != 0 && ::read(interrupts_, &count, sizeof count) == sizeof count;
  }

  [[nodiscard]] std::int64_t pending_sends() const {
    return std::count_if(sends_.begin(), sends_.end(),
                         [&](const Send& send) { return !abandoned_[static_cast<std::size_t>(send.dest)]; });
  }

  void started(std::int64_t bytes) {
    active_ = clock_.now();
    const Seconds start = std::max(busy_until_ - kTransferPatience, active_);
    busy_until_ = start + kTransferPatience + Seconds(static_cast<double>(bytes) / kSlowestTransfer);
  }

  [[nodiscard]] bool busy(Seconds now) const {
    if (now >= busy_until_) return false;
    return !sends_.empty() || !receives_.empty();
  }

  void progress_sends(bool may_throw) {
    for (auto send = sends_.begin(); send != sends_.end();) {
      int done = 0;
      const int code = MPI_Test(&send->request, &done, MPI_STATUS_IGNORE);
      // An error on a send is the peer's death or its refusal: the frame is lost, as frames may be.
      if (code != MPI_SUCCESS && may_throw && !is_peer_failure(code)) check_mpi(code, "MPI_Test", "a send");
      if (done != 0 || code != MPI_SUCCESS) {
        pending_bytes_[static_cast<std::size_t>(send->dest)] -= send->frame.size();
        send = sends_.erase(send);
      } else {
        ++send;
      }
    }
  }

  // What has come, after at most so many probes in vain. Open MPI looks among the messages it has taken in, and takes
  // in others only where it finds none: those are there for a second probe. But one in vain gives the processor away,
  // so that only who has nothing else to do probes twice.
  std::optional<Received> look(int probes) {
    flush();
    look_for_deaths();
    progress_sends(/*may_throw=*/true);
    for (const auto& link : links_) {
      if (link && !link->idle()) link->collect();
    }
    match(probes);
    return take();
  }

  bool probe(int source, int probes, MPI_Message& message, MPI_Status& status) {
    int found = 0;
    for (; probes > 0 && found == 0; --probes) {
      check_mpi(MPI_Improbe(source, MPI_ANY_TAG, comm_, &found, &message, &status), "MPI_Improbe", "the transport");
    }
    return found != 0;
  }

  [[nodiscard]] Incoming& incoming_of(int source) { return incoming_[static_cast<std::size_t>(source)]; }

  // A message is not being received any more.
  void forget(const Receive& receive) {
    Incoming& incoming = incoming_of(receive.source);
    full_ -= incoming.has_room() ? 0 : 1;
    incoming.bytes -= receive.frame.size();
    --incoming.messages;
    full_ += incoming.has_room() ? 0 : 1;
  }

  // Begins to receive every message that has come of ranks that have room for it.
  void match(int probes) {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    while (full_ == 0) {
      if (!probe(MPI_ANY_SOURCE, probes, message, status)) {
        drained_ = true;
        return;
      }
      begin_to_receive(message, status);
    }
    for (int source = 0; source < size_; ++source) {
      while (incoming_of(source).has_room() && probe(source, 1, message, status)) begin_to_receive(message, status);
    }
  }

  void begin_to_receive(MPI_Message& message, const MPI_Status& status) {
    MPI_Count bytes = 0;
    check_mpi(MPI_Get_elements_x(&status, MPI_BYTE, &bytes), "MPI_Get_elements_x", "a message");
    Incoming& incoming = incoming_of(status.MPI_SOURCE);
    const bool oversized = bytes < 0 || bytes > incoming.most_bytes;
    Frame frame(oversized ? 0 : static_cast<std::int64_t>(bytes));
    Receive& receive = receives_.emplace_back(
        Receive{status.MPI_SOURCE, MPI_REQUEST_NULL, std::move(frame), status.MPI_TAG, false, oversized});
    stats_.oversized += oversized ? 1 : 0;  // taken in cut to nothing, so that it does not stay in the queue
    incoming.bytes += receive.frame.size();
    ++incoming.messages;
    full_ += incoming.has_room() ? 0 : 1;
    stats_.most_taken_in = std::max(stats_.most_taken_in, incoming.bytes);
    stats_.most_messages = std::max(stats_.most_messages, incoming.messages);
    started(receive.frame.size());
    check_mpi(
        MPI_Imrecv(receive.frame.data(), static_cast<int>(receive.frame.size()), MPI_BYTE, &message, &receive.request),
        "MPI_Imrecv", fmt::format("rank {}", status.MPI_SOURCE));
  }

  // The oldest complete frame none of whose elders from the same rank is still under way: keeps the order per rank
  // without letting one stalled transfer hold up the others. Frames of a batch go before all that came after it.
  std::optional<Received> take() {
    if (!unpacked_.empty()) return hand_over();
    for (auto it = receives_.begin(); it != receives_.end();) {
      if (!it->done) {
        int done = 0;
        const int code = MPI_Test(&it->request, &done, MPI_STATUS_IGNORE);
        it->done = done != 0 || code != MPI_SUCCESS;
        if (code != MPI_SUCCESS) {
          if (!it->dropped && !is_peer_failure(code)) check_mpi(code, "MPI_Test", "a receive");
          it->dropped = true;  // lost or cut: nothing to hand over
        }
      }
      if (it->done && it->dropped) {
        forget(*it);
        it = receives_.erase(it);
        continue;
      }
      const auto same_source = [&](const Receive& elder) { return elder.source == it->source && !elder.dropped; };
      if (it->done && std::none_of(receives_.begin(), it, same_source)) {
        forget(*it);
        const int source = it->source;
        if (it->tag == kBatchTag) {
          for_each_of_batch(std::as_const(it->frame).bytes(), [&](Frame frame, bool notice) {
            unpacked_.push_back({source, notice ? borrow(source, frame) : std::move(frame)});
          });
        } else {
          unpacked_.push_back({source, it->tag == kNoticeTag ? borrow(source, it->frame) : std::move(it->frame)});
        }
        receives_.erase(it);
        active_ = clock_.now();
        return hand_over();
      }
      ++it;
    }
    return std::nullopt;
  }

  Received hand_over() {
    Received received = std::move(unpacked_.front());
    unpacked_.pop_front();
    if (const auto& link = links_[static_cast<std::size_t>(received.source)]) link->extend(received.frame);
    ++stats_.frames_received;
    stats_.bytes_received += received.frame.size();
    return received;
  }

  // The frame that a notice stands for; an empty one, as malformed as a frame can be, when it stands for none.
  [[nodiscard]] Frame borrow(int source, const Frame& notice) const {
    const std::unique_ptr<SharedLink>& link = links_[static_cast<std::size_t>(source)];
    return link ? link->borrow(notice.bytes()) : Frame();
  }

  MPI_Comm comm_;
  int rank_, size_;
  bool closed_ = false;
  Liveness* liveness_;
  std::vector<std::unique_ptr<SharedLink>> links_;  // by rank; null where memory is not shared
  std::vector<bool> found_gone_;                    // by rank: when deaths were last looked for
  bool all_share_memory_;
  bool drained_ = false;  // no message was left since then
  Seconds looked_{0};
  NodePool nodes_;
  std::pmr::list<Send> sends_{&nodes_};
  std::pmr::list<Receive> receives_{&nodes_};
  std::vector<Outgoing> outgoing_;               // by rank
  std::vector<int> waiting_;                     // ranks whose batch is not empty
  std::pmr::deque<Received> unpacked_{&nodes_};  // received, and to be handed over next
  std::vector<Incoming> incoming_;               // by rank
  std::vector<Seconds> gone_at_;                 // by rank: when it was found to be gone; negative: not yet
  int full_ = 0;                                 // ranks that have no room
  Seconds active_{0};                            // when something last began or ended
  bool woken_up_ = false;                        // and the side channel not read since: messages first
  Seconds busy_until_{0};                        // until when what is under way is expected to move
  std::vector<bool> abandoned_;
  std::vector<std::int64_t> pending_bytes_;  // by rank, of sends
  std::vector<Seconds> woken_;               // by rank: when it was last woken; negative: never
  int interrupts_ = -1;                      // counts calls of interrupt()
  TransportStats stats_;
  SteadyClock clock_;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(const MpiSession& session, const MpiTransportOptions& options) {
  Meeting meeting = meet(session, options);
  if (meeting.sockets.empty()) return std::make_unique<MpiTransport>(std::move(meeting));
  return std::make_unique<StreamTransport>(meeting.rank, std::move(meeting.sockets), std::move(meeting.links));
}

}  // namespace cleave::comm
