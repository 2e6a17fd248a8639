// Greeting, flow control, liveness.
#include "exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cleave/base/error.hpp"
#include "cleave/base/version.hpp"
#include "cleave/model/step_text.hpp"
#include "window.hpp"

namespace cleave::server {

namespace {

/// A rank that leaves so many bytes unread is sent nothing more. More than a window and one message of the largest, so
/// that who only waits for its turn is not held up.
constexpr std::int64_t kMostUnread = 2 * kWindowBytes + comm::kMaxFrameBytes;
/// A result may come in parts, each with its header: so much longer than one message, and what else a rank says.
constexpr std::int64_t kInParts = 2, kSmallTalk = 1 << 20;
/// Pings go to a rank this many times within the patience.
constexpr double kPingsInPatience = 5.0;
/// Real time in which a rank that is alive must get on with the tasklet whose turn it is: some patiences, and what its
/// size may take on a slow and busy host (bytes a second).
constexpr double kPatiencesForAnswer = 3.0;
constexpr double kSlowestHost = 5e6;
/// A tasklet that gets on panel by panel may take so many of these times, and no more.
constexpr double kMostAllowances = 4.0;
/// A rank that leaves too much unread takes in a message of the largest within its patiences and this time.
constexpr Seconds kLargestMessage{static_cast<double>(comm::kMaxFrameBytes) / kSlowestHost};
/// Ranks are looked after so often also while messages come without a pause.
constexpr Seconds kBetweenLooks{0.05};
/// A longer gap between two looks means that the server itself was busy: silence in it proves nothing.
constexpr Seconds kOwnPause{0.2};
/// How long a rank that is silent is waited for at the end.
constexpr Seconds kLastWord{1.0};
/// Others have their patience to take leave, and no less than this: all hosts end at the same time, and are busy with
/// it.
constexpr Seconds kLeave{5.0};

}  // namespace

Clock& clock_of(const FleetTerms& terms) {
  static SteadyClock steady;
  return terms.real_time != nullptr ? *terms.real_time : steady;
}

Exchange::Exchange(comm::Transport& transport, const sched::StepSpec& spec, const FleetTerms& terms, Packer packer,
                   Profile& profile)
    : transport_(transport),
      packer_(std::move(packer)),
      profile_(profile),
      clock_(clock_of(terms)),
      patience_(terms.patience) {
  for (int rank = 0; rank < transport.size(); ++rank) peers_.emplace_back(nodes_);
  for (int rank = 1; rank < transport.size(); ++rank) expect(rank, 0);
  CLEAVE_ASSERT(transport.size() > 1 || spec.devices.empty(), "devices need a rank to live on");
  for (const fleet::DeviceProfile& device : spec.devices) {
    peers_[static_cast<std::size_t>(rank_of(device.id))].devices.push_back(device.id);
    rooms_.emplace(device.id, Room{.memory = device.memory});
  }
  greet(spec, terms);
}

int Exchange::rank_of(DeviceId device) const { return server::rank_of(device, transport_.size() - 1); }

// Who asks as often as it likes and reads no answer gets no more of them.
bool Exchange::takes_answers(int rank) const { return transport_.bytes_pending(rank) <= kSmallTalk; }

// Who does not is sent nothing more.
bool Exchange::reads(int rank) const { return transport_.bytes_pending(rank) <= kMostUnread; }

// A rank that will never take part: as one that died, but known before the first step.
void Exchange::leave_out(int rank, std::string why) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.gone = true;
  ranks_[static_cast<std::size_t>(rank)].absent = std::move(why);
  transport_.abandon(rank);
  let_go(rank);
}

void Exchange::greet(const sched::StepSpec& spec, const FleetTerms& terms) {
  const Seconds limit = clock_.now() + terms.start_limit;
  std::set<int> silent;
  ranks_.resize(peers_.size());
  for (int rank = 1; rank < transport_.size(); ++rank) {
    silent.insert(rank);
    ranks_[static_cast<std::size_t>(rank)] = {rank, 0, {}, peers_[static_cast<std::size_t>(rank)].devices};
  }
  const auto leave_out_silent = [&](int rank, std::string why) {
    if (silent.erase(rank) > 0) leave_out(rank, std::move(why));
  };
  while (!silent.empty()) {
    const bool late = clock_.now() > limit;
    for (const int rank : std::vector<int>(silent.begin(), silent.end())) {
      if (transport_.gone(rank)) leave_out_silent(rank, "it died before it was ready");
      if (late) leave_out_silent(rank, fmt::format("no answer within {} s", terms.start_limit.value()));
    }
    auto received = transport_.wait(Seconds(0.1));
    if (!received) continue;
    const int rank = received->source;
    const auto header = comm::decode(received->frame);
    if (!header || !silent.contains(rank)) continue;
    if (header->kind == comm::Kind::refusal) leave_out_silent(rank, comm::text_of(received->frame));
    if (header->kind == comm::Kind::ready) silent.erase(rank);
    if (header->kind != comm::Kind::hello || !takes_answers(rank)) continue;
    const auto hello = comm::decode_hello(received->frame);
    if (!hello) continue;
    const std::vector<DeviceId>& hosted = peers_[static_cast<std::size_t>(rank)].devices;
    // Which process it is says the system, where it knows.
    const comm::PeerProcess process = transport_.process(rank);
    ranks_[static_cast<std::size_t>(rank)] = {rank, process.pid > 0 ? process.pid : hello->pid, hello->host, hosted};
    if (hello->version != kVersion) {
      const std::string why = fmt::format("it runs cleave {}, the server {}", hello->version, kVersion);
      transport_.send(rank, comm::encode_refusal(why));
      leave_out_silent(rank, why);
      continue;
    }
    comm::Welcome welcome{.wire = spec.wire,
                          .gemm_kernels = terms.gemm_kernels,
                          .heartbeat = terms.patience / kPingsInPatience,
                          .patience = terms.orphan_patience,
                          .devices = {},
                          .step = spec.layout.layout == sched::Layout::stages
                                      ? model::to_text({spec.model, spec.batch, spec.freeze, spec.wire, spec.boundary})
                                      : std::string()};
    for (const DeviceId id : hosted) {
      const fleet::DeviceProfile& d = spec.devices[static_cast<std::size_t>(id.value)];
      welcome.devices.push_back({d.id, d.memory});
    }
    transport_.send(rank, comm::encode(welcome));
  }
  const auto takes_part = [](const RankInfo& rank) { return rank.rank > 0 && rank.absent.empty(); };
  if (ranks_.size() > 1 && std::none_of(ranks_.begin(), ranks_.end(), takes_part)) {
    throw EnvironmentError("start", "device rank 1", ranks_[1].absent);
  }
  for (RankInfo& rank : ranks_) rank.address = transport_.address(rank.rank);
  watched_ = clock_.now();
  for (Peer& peer : peers_) peer.heard = peer.pinged = peer.took = watched_;
}

void Exchange::submit(const sched::Tasklet& tasklet) {
  peers_[static_cast<std::size_t>(rank_of(tasklet.piece.device))].waiting.push_back(tasklet);
}

// Gives back the room that a tasklet holds with its rank; parts of it that were not sent yet will not be.
void Exchange::close_window(std::int64_t tasklet, bool answer_may_come) {
  const auto sent = under_way_.find(tasklet);
  Peer& peer = peers_[static_cast<std::size_t>(sent->second.rank)];
  peer.bytes_under_way -= sent->second.bytes;
  --peer.tasklets_under_way;
  if (!peer.part.whole() && peer.waiting.front().id.value == tasklet) {
    peer.waiting.pop_front();
    peer.part = {};
  }
  if (!answer_may_come) expect(sent->second.rank, -sent->second.answer);
  under_way_.erase(sent);
}

bool Exchange::forget(TaskletId tasklet) {
  const auto sent = under_way_.find(tasklet.value);
  if (sent != under_way_.end()) {
    sent->second.parts.reset();
    forgotten_.emplace(sent->first, sent->second);  // the answer still comes, or never
    close_window(tasklet.value, /*answer_may_come=*/true);
    return true;
  }
  bool waited = false;
  for (Peer& peer : peers_) {
    waited |= std::erase_if(peer.waiting, [&](const sched::Tasklet& waiting) { return waiting.id == tasklet; }) > 0;
  }
  return !waited;
}

void Exchange::forget_all(DeviceId device) {
  const auto its = [&](const auto& of) { return of.tasklet.piece.device == device; };
  std::vector<TaskletId> asked;
  for (const auto& [id, sent] : under_way_) {
    if (its(sent)) asked.emplace_back(id);
  }
  for (const TaskletId tasklet : asked) (void)forget(tasklet);
  std::erase_if(lost_, its);
  std::erase_if(peers_[static_cast<std::size_t>(rank_of(device))].waiting,
                [&](const sched::Tasklet& waiting) { return waiting.piece.device == device; });
  std::erase_if(brought_, [&](const auto& of) { return of.second.device == device; });
  rooms_.at(device).columns = Bytes(0);
}

void Exchange::send(DeviceId device, comm::Frame frame) {
  const int rank = rank_of(device);
  if (!peers_[static_cast<std::size_t>(rank)].gone) transport_.send(rank, std::move(frame));
}

void Exchange::release(TaskletId columns, DeviceId device) {
  Peer& peer = peers_[static_cast<std::size_t>(rank_of(device))];
  if (std::erase_if(peer.waiting, [&](const sched::Tasklet& waiting) { return waiting.id == columns; }) > 0) return;
  if (const auto brought = brought_.find(columns); brought != brought_.end()) {
    rooms_.at(device).columns -= brought->second.memory;
    brought_.erase(brought);
  }
  if (!peer.gone) transport_.send(rank_of(device), comm::encode_release(columns, device));
}

bool Exchange::may_send(int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer.waiting.empty() || peer.gone || !reads(rank)) return false;
  if (peer.part.of == comm::PartOf::k_blocks) {
    return !under_way_.at(peer.waiting.front().id.value).parts->has_enough();
  }
  return window_is_open(peer.tasklets_under_way, peer.bytes_under_way);
}

// One message to each rank in turn, so that none waits until the others have all that they may have.
void Exchange::pump() {
  for (bool sent = true; sent;) {
    sent = false;
    for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
      if (!may_send(static_cast<int>(rank))) continue;
      send_next(static_cast<int>(rank));
      sent = true;
    }
  }
}

// The next tasklet that waits, or the next part of it.
void Exchange::send_next(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  const sched::Tasklet tasklet = peer.waiting.front();
  const bool begins = peer.part.whole();
  if (begins && !transport_.shares_memory(rank) && !tasklet.stays_on_device()) {
    const Room& room = rooms_.at(tasklet.piece.device);
    peer.part = packer_.first_part(tasklet, room.memory - room.columns);
  }
  comm::MessagePart& part = peer.part;
  comm::Frame frame;
  try {
    frame = packer_.pack(tasklet, rank, part);
  } catch (...) {  // the step is over, and nothing of this tasklet was sent
    if (begins) part = {};
    throw;
  }
  if (tasklet.stays_on_device()) {  // of which no answer tells that there is room for more
    peer.waiting.pop_front();
    rooms_.at(tasklet.piece.device).columns += tasklet.piece.resident;
    brought_.emplace(tasklet.id, Brought{tasklet.piece.device, tasklet.piece.resident});
    transport_.send(rank, std::move(frame));
    return;
  }
  // A task counts for what it takes, be it carried or read in place.
  const std::int64_t bytes = part.whole() ? std::max(frame.size(), tasklet.piece.bytes_down.value()) : frame.size();

  UnderWay& sent = under_way_
                       .try_emplace(tasklet.id.value,
                                    UnderWay{.tasklet = tasklet, .rank = rank, .sent = clock_.now(), .order = sends_++})
                       .first->second;
  sent.bytes += bytes;
  peer.bytes_under_way += bytes;
  peer.tasklets_under_way += begins ? 1 : 0;
  const auto header = comm::decode_header(frame.bytes().first(comm::kHeaderBytes), frame.size());
  if (begins) {
    comm::Header answer = comm::result_header(*header);
    answer.part = {};
    sent.answer = comm::frame_bytes(answer) * kInParts;
    expect(rank, sent.answer);
  }
  if (!part.whole()) {
    if (begins) sent.parts = std::make_shared<ReturnedParts>(*header);
    sent.parts->sent(part);
    part.first = part.end();
    part.count = std::min(part.count, header->part_units() - part.first);
  }
  if (part.count == 0) {
    peer.waiting.pop_front();
    part = {};
  }
  const Profile::Scope scope(profile_, Phase::send, tasklet.op);
  transport_.send(rank, std::move(frame));
}

// The rank may send so much more, or less: what it was asked, and no more, is what the transport takes in.
void Exchange::expect(int rank, std::int64_t more) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.answers += more;
  transport_.expect(rank, peer.answers + kSmallTalk);
}

void Exchange::let_go(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.waiting.clear();
  peer.part = {};
  peer.bytes_under_way = peer.tasklets_under_way = 0;
  expect(rank, -peer.answers);
  std::erase_if(under_way_, [&](const auto& entry) { return entry.second.rank == rank; });
  std::erase_if(forgotten_, [&](const auto& entry) { return entry.second.rank == rank; });
  std::erase_if(returned_, [&](DeviceId device) { return rank_of(device) == rank; });
  gone_.insert(gone_.end(), peer.devices.begin(), peer.devices.end());
}

void Exchange::give_up(std::int64_t tasklet) {
  const UnderWay sent = under_way_.at(tasklet);
  close_window(tasklet);
  lost_.push_back({.kind = Answer::Kind::lost, .tasklet = sent.tasklet, .frame = {}, .reason = {}});
}

// Which message was damaged cannot be known: the one that should have come next is the likeliest, and asking again for
// the wrong one costs time, never a bit.
void Exchange::give_up_oldest(int rank) {
  std::int64_t oldest = -1;
  for (const auto& [id, sent] : under_way_) {
    if (sent.rank == rank && (oldest < 0 || id < oldest)) oldest = id;
  }
  if (oldest >= 0) give_up(oldest);
}

// Progress of a tasklet must come within this time.
Seconds Exchange::allowance(const UnderWay& sent) const {
  return patience_ * kPatiencesForAnswer + Seconds(static_cast<double>(sent.bytes) / kSlowestHost);
}

void Exchange::watch() {
  const Seconds now = clock_.now(), gap = now - watched_;
  watched_ = now;
  const Seconds pause = gap > kOwnPause ? gap : Seconds(0);
  watch_ranks(now, pause);
  watch_tasklets(now, pause);
}

void Exchange::watch_ranks(Seconds now, Seconds pause) {
  for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if (peer.gone || peer.farewell) continue;
    peer.heard += pause;
    if (transport_.gone(static_cast<int>(rank))) {
      peer.gone = true;
      transport_.abandon(static_cast<int>(rank));
      if (!peer.silent) let_go(static_cast<int>(rank));
      continue;
    }
    // What waits for a rank that reads nothing is not under way, so that none of it would ever be overdue.
    const std::int64_t unread = transport_.bytes_pending(static_cast<int>(rank));
    peer.took += pause;
    if (reads(static_cast<int>(rank)) || unread < peer.unread) peer.took = now;
    peer.unread = unread;
    if (reads(static_cast<int>(rank)) && now - peer.pinged > patience_ / kPingsInPatience) {
      peer.pinged = now;
      transport_.send(static_cast<int>(rank), comm::encode_ping(pings_++));
    }
    const bool deaf = now - peer.took > patience_ * kPatiencesForAnswer + kLargestMessage;
    if (!peer.silent && (deaf || now - peer.heard > patience_)) {
      peer.silent = true;
      let_go(static_cast<int>(rank));
    }
  }
}

// A rank answers in the order in which it was asked, so only the tasklet whose turn it is can be late, and those that
// wait behind it have the time of all before them: a busy host is given what its work takes, a rank that withholds one
// block no more than the time of that block. What devices do beside other work has its turn when there is no other.
void Exchange::watch_tasklets(Seconds now, Seconds pause) {
  first_.assign(peers_.size(), nullptr);
  for (const auto& [id, sent] : under_way_) {
    const UnderWay*& oldest = first_[static_cast<std::size_t>(sent.rank)];
    const auto turn = [](const UnderWay& of) { return std::pair(of.tasklet.background, of.order); };
    if (oldest == nullptr || turn(sent) < turn(*oldest)) oldest = &sent;
  }
  std::vector<std::int64_t> overdue;
  for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
    Turn& turn = peers_[rank].turn;
    if (first_[rank] == nullptr) {
      turn = {};
      continue;
    }
    const UnderWay& sent = *first_[rank];
    if (turn.tasklet != sent.tasklet.id.value) {
      turn = {.tasklet = sent.tasklet.id.value, .began = now, .progress = now};
      continue;
    }
    turn.began += pause;
    turn.progress += pause;
    const Seconds allowed = allowance(sent);
    if (now - turn.progress > allowed || now - turn.began > allowed * kMostAllowances) overdue.push_back(turn.tasklet);
  }
  for (const std::int64_t id : overdue) give_up(id);
  // What was forgotten is remembered for as long as its answer can still tell something.
  std::erase_if(forgotten_, [&](const auto& entry) {
    const UnderWay& sent = entry.second;
    if (now - sent.sent <= allowance(sent) * kMostAllowances) return false;
    expect(sent.rank, -sent.answer);
    return true;
  });
}

// A rank's last message. Who sends it unasked is gone as if it had died: nobody looks after it any more.
void Exchange::take_leave(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.farewell = true;
  if (leaving_ || peer.gone) return;
  peer.gone = true;
  transport_.abandon(rank);
  let_go(rank);
}

std::optional<Answer> Exchange::take_in(comm::Received received) {
  const int rank = received.source;
  if (rank < 1 || rank >= transport_.size()) return std::nullopt;
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.heard = clock_.now();
  if (peer.silent && !peer.gone && reads(rank)) {
    peer.silent = false;
    returned_.insert(returned_.end(), peer.devices.begin(), peer.devices.end());
  }
  const Profile::Scope scope(profile_, Phase::receive);
  const auto header = comm::decode(received.frame);
  if (!header) {
    give_up_oldest(rank);
    return std::nullopt;
  }
  switch (header->kind) {
    case comm::Kind::ping:
      if (takes_answers(rank)) transport_.send(rank, comm::encode_pong(header->sequence));
      return std::nullopt;
    case comm::Kind::farewell: take_leave(rank); return std::nullopt;
    case comm::Kind::result:
    case comm::Kind::digest:
    case comm::Kind::refused: break;
    default: return std::nullopt;
  }
  const bool damaged_on_the_way = header->kind == comm::Kind::refused && header->reason == comm::Reason::malformed;
  const auto sent = under_way_.find(header->tasklet.value);
  if (sent == under_way_.end() || sent->second.rank != rank) {
    if (damaged_on_the_way) give_up_oldest(rank);
    const auto late = forgotten_.find(header->tasklet.value);
    if (late == forgotten_.end() || late->second.rank != rank) return std::nullopt;  // never asked for, or a double
    Answer answer{.kind = Answer::Kind::late, .tasklet = late->second.tasklet, .frame = {}, .reason = {}};
    expect(rank, -late->second.answer);
    forgotten_.erase(late);
    return answer;
  }
  if (damaged_on_the_way) {
    give_up(header->tasklet.value);
    return std::nullopt;
  }
  if (header->kind == comm::Kind::result) return take_result(*header, std::move(received.frame));
  if (header->kind == comm::Kind::digest) {
    Answer answer{.kind = Answer::Kind::result,
                  .tasklet = sent->second.tasklet,
                  .frame = std::move(received.frame),
                  .reason = {},
                  .took = clock_.now() - sent->second.sent};
    close_window(header->tasklet.value);
    return answer;
  }
  // Columns that were lost on the way are no fault of the device.
  const auto kind = header->reason == comm::Reason::absent ? Answer::Kind::lost : Answer::Kind::refused;
  Answer answer{.kind = kind, .tasklet = sent->second.tasklet, .frame = {}, .reason = {}};
  answer.why = header->reason;
  answer.reason = fmt::format("{}: {}", comm::name_of(header->reason), comm::text_of(received.frame));
  close_window(header->tasklet.value);
  return answer;
}

// Of a tasklet that is under way: its block, or the rows of one part, which are an answer when all are there.
std::optional<Answer> Exchange::take_result(const comm::Header& header, comm::Frame frame) {
  const UnderWay& sent = under_way_.at(header.tasklet.value);
  if (sent.parts) {
    switch (sent.parts->take(frame, header)) {
      case ReturnedParts::Taken::more: {
        Turn& turn = peers_[static_cast<std::size_t>(sent.rank)].turn;
        if (turn.tasklet == header.tasklet.value) turn.progress = clock_.now();
        return std::nullopt;
      }
      case ReturnedParts::Taken::again: return std::nullopt;
      case ReturnedParts::Taken::missing: give_up(header.tasklet.value); return std::nullopt;
      case ReturnedParts::Taken::unasked: {
        Answer answer{.kind = Answer::Kind::refused, .tasklet = sent.tasklet, .frame = {}, .reason = {}};
        answer.reason = "it answers what it was not sent yet";
        close_window(header.tasklet.value);
        return answer;
      }
      case ReturnedParts::Taken::whole: frame = sent.parts->frame(); break;
    }
  }
  Answer answer{.kind = Answer::Kind::result,
                .tasklet = sent.tasklet,
                .frame = std::move(frame),
                .reason = {},
                .took = clock_.now() - sent.sent};
  close_window(header.tasklet.value);
  return answer;
}

// MPI moves messages in here, as it does while the server waits.
std::optional<comm::Received> Exchange::poll() {
  const Profile::Scope scope(profile_, Phase::receive);
  return transport_.poll();
}

std::optional<Answer> Exchange::next(Seconds at_most) {
  const Seconds limit = clock_.now() + at_most;
  const std::size_t known = gone_.size() + returned_.size();
  for (;;) {
    if (!lost_.empty()) {
      Answer answer = std::move(lost_.front());
      lost_.pop_front();
      return answer;
    }
    pump();
    std::optional<comm::Received> received = poll();
    const Seconds now = clock_.now();
    if (!received || now - watched_ > kBetweenLooks) watch();
    if (!received) {
      const Seconds left = limit - now;
      if (!lost_.empty()) continue;
      if (left.value() <= 0 || gone_.size() + returned_.size() > known) return std::nullopt;
      const Profile::Scope scope(profile_, Phase::wait);
      received = transport_.wait(std::min(left, kBetweenLooks));
    }
    if (received) {
      if (std::optional<Answer> answer = take_in(std::move(*received))) return answer;
      if (clock_.now() >= limit) return std::nullopt;  // what comes may be nothing, without end
    }
  }
}

bool Exchange::is_gone(DeviceId device) const {
  const Peer& peer = peer_of(device);
  return peer.gone || peer.silent || std::ranges::find(gone_, device) != gone_.end();
}

std::vector<DeviceId> Exchange::take_gone() { return std::exchange(gone_, {}); }
std::vector<DeviceId> Exchange::take_returned() { return std::exchange(returned_, {}); }

std::vector<RankInfo> Exchange::say_goodbye(Seconds at_most) {
  const Seconds begun = clock_.now();
  leaving_ = true;
  for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
    if (!peers_[rank].gone) transport_.send(static_cast<int>(rank), comm::encode_goodbye());
  }
  // A live rank sends its farewell as soon as it has read that, even while it computes, so the usual patience holds.
  std::vector<Seconds> unread(peers_.size(), begun);
  const auto waited_for = [&](std::size_t rank) {
    const Peer& peer = peers_[rank];
    const Seconds now = clock_.now();
    if (peer.gone || peer.farewell || now - begun >= at_most) return false;
    if (transport_.bytes_pending(static_cast<int>(rank)) > 0) unread[rank] = now;
    return peer.silent ? now - begun < kLastWord : now - unread[rank] < std::max(patience_, kLeave);
  };
  const auto anybody = [&] {
    bool any = false;
    for (std::size_t rank = 1; rank < peers_.size(); ++rank) any |= waited_for(rank);
    return any;
  };
  while (anybody()) {
    // A rank that has left may have said farewell before: what it sent comes first.
    if (auto received = transport_.wait(Seconds(0.05))) {
      (void)take_in(std::move(*received));
      continue;
    }
    // It may have done so since that wait ended: what it sent until it left is read before it counts as gone.
    std::vector<std::size_t> left;
    for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
      if (!peers_[rank].gone && transport_.gone(static_cast<int>(rank))) left.push_back(rank);
    }
    if (left.empty()) continue;
    while (auto received = transport_.poll()) (void)take_in(std::move(*received));
    for (const std::size_t rank : left) peers_[rank].gone = true;
  }
  std::vector<RankInfo> missing;
  for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
    if (!peers_[rank].farewell) missing.push_back(ranks_[rank]);
  }
  return missing;
}

}  // namespace cleave::server
