// Adds up the work that devices still have to do, from the books of the step.
#include "stages/run_candidates.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "stages/stage_run.hpp"

namespace cleave::sched::stages {

namespace {

constexpr double kOfLink = 0.85;     // share of a downlink that weights of a stand-in get
constexpr double kServerBehind = 2;  // the server is asked first while its sums take no more than this x what is left
constexpr double kAcknowledged = 1e-3;  // share of a step, in which acknowledgements follow the sums they waited for

}  // namespace

Candidate& Candidates::of_device(std::vector<Candidate>& all, std::int32_t id) {
  return *std::ranges::lower_bound(all, id, {}, &Candidate::device);
}

std::vector<Candidate> Candidates::all() {
  std::vector<Candidate> all = idle();
  std::vector<double> left_up(run_.stage.size(), 0), uplinks(run_.stage.size(), 0), passed_in(run_.stage.size(), 0);
  double at_rates = 0;  // seconds until all sequences have passed the stages from r up
  for (std::int32_t r = run_.top(); r >= 0; --r) {
    const auto i = static_cast<std::size_t>(r);
    for (const ActiveReplica& replica : run_.at(r).replicas) uplinks[i] += run_.book(replica.device).uplink;
    left_up[i] = run_.progress.left_of(r);
    if (uplinks[i] > 0) at_rates = std::max(at_rates, left_up[i] / uplinks[i]);
    passed_in[i] = run_.progress.passes_in(r, Seconds(at_rates)).value();
  }
  for (std::int32_t r = 0; r <= run_.top(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    add_visits(all, r, left_up[i], uplinks[i], passed_in[i]);
  }
  add_sums_to_read(all);
  for (const OwnerState& of : run_.owner) {
    if (!of.active() || of.device == kServer || !run_.book(of.device).present) continue;
    add_owner(of_device(all, of.device), of, passed_in[static_cast<std::size_t>(of.stage)]);
  }
  for (Candidate& of : all) {
    take_off_acknowledged(of);
    if (of.own_sums == 0) continue;
    of.own_gaps = std::max(0.0, of.own_sums - of.down_busy);
    of.own_sums += of.sums_busy;
  }
  return all;
}

std::vector<Candidate> Candidates::idle() const {
  std::vector<Candidate> all;
  for (std::size_t id = 0; id < run_.device.size(); ++id) {
    const DeviceBook& of = run_.device[id];
    if (!of.present) continue;
    Candidate candidate;
    candidate.device = static_cast<std::int32_t>(id);
    candidate.memory = static_cast<double>(of.free.value());
    candidate.uplink = of.uplink;
    candidate.downlink = of.downlink;
    candidate.compute = of.compute;
    candidate.roles = of.roles;
    all.push_back(candidate);
  }
  return all;
}

void Candidates::add_visits(std::vector<Candidate>& all, std::int32_t r, double left_up, double uplink,
                            double passed_in) {
  const plan::StageCost& cost = run_.at(r).cost;
  const double left = kDownOfUp * left_up;
  // A whole visit sends the boundary up once forward and, where sequences pass twice, once backward.
  const Bytes of_visit =
      cost.forward_result(run_.work.seq) + (run_.passed_twice(r) ? cost.backward_result(run_.work.seq) : Bytes(0));
  const double visits = left_up / static_cast<double>(of_visit.value());
  const Flops visit_flops = cost.forward(0, run_.work.seq) + cost.way_back(run_.work.seq, false);
  for (const ActiveReplica& replica : run_.at(r).replicas) {
    Candidate& of = of_device(all, replica.device);
    const auto [forward_slots, backward_slots] = run_.lendable(replica);
    of.memory +=
        static_cast<double>((cost.open_forward() * forward_slots + cost.open_backward() * backward_slots).value());
    const double share = of.uplink / uplink;
    of.down_busy += left * share / of.downlink;
    of.down_visits += left * share / of.downlink;
    if (left_up > 0) of.visits_left = std::max(of.visits_left, passed_in);
    of.compute_busy +=
        visits * share * (cost.is_head() ? cost.forward(0, run_.work.seq) : visit_flops).value() / of.compute;
    of.up_busy += left_up / uplink;
    of.holds.push_back({r, run_.may_go(replica, r) ? static_cast<double>(cost.weights().value()) : 0, share});
  }
}

void Candidates::add_sums_to_read(std::vector<Candidate>& all) {
  const auto reads_now = [&](Candidate& of, const OwnerState& sums, bool is_sent) {
    const double reads = static_cast<double>(sums.cost.operands.value()) / of.downlink;
    const double computes = sums.cost.alone.value() / of.compute;
    of.down_busy += reads;
    of.compute_busy += computes;
    if (!sums.stands_in) return;
    of.down_again += reads;
    of.compute_again += computes;
    if (!is_sent) return;
    of.reads_sent += reads;
    of.computes_sent += computes;
  };
  run_.purposes.for_each([&](const Purpose& purpose) {
    if (purpose.errand == Errand::sum && purpose.reads && purpose.device != kServer)
      reads_now(of_device(all, purpose.device), run_.owner[static_cast<std::size_t>(purpose.owner)], true);
  });
  for (Candidate& of : all) {
    std::set<std::pair<std::int32_t, std::int64_t>> read;  // once, for all owners on the device
    for (const DueSum& due : run_.book(of.device).due) {
      if (read.emplace(due.stage, due.sequence).second)
        reads_now(of, run_.owner[static_cast<std::size_t>(due.owner)], false);
    }
  }
}

void Candidates::add_owner(Candidate& candidate, const OwnerState& of, double passed_in) {
  // Sequences that the replica will run itself are not sent; those that other owners on the device read are sent
  // once.
  const std::int64_t unseen = std::ranges::count(of.seen, false);
  double own = 0;
  for (const Candidate::Held& held : candidate.holds) {
    if (of.replica && held.stage == of.stage) own = held.share * static_cast<double>(unseen);
  }
  const double reads_s = static_cast<double>(of.cost.operands.value()) / candidate.downlink;
  const double sent = std::max(0.0, static_cast<double>(unseen - read_for_others(of)) - own);
  const double reads = sent * reads_s + loading_left(of);
  const double computes = (sent * of.cost.alone.value() + own * of.cost.beside.value()) / candidate.compute;
  candidate.down_busy += reads;
  candidate.compute_busy += computes;
  if (of.stands_in) {
    candidate.down_again += reads;
    candidate.compute_again += computes;
  }
  const double to_send = of.panels > 0 ? 1 - static_cast<double>(of.panels_in) / static_cast<double>(of.panels) : 1;
  if (!of.closed) {
    const double sends = to_send * static_cast<double>(of.sums.value()) / candidate.uplink;
    (of.left > 0 ? candidate.sums_busy : candidate.up_busy) += sends;
    if (of.left > 0 && of.stands_in) candidate.sums_again += sends;
  }
  const auto id = static_cast<std::size_t>(of.device);
  if (of.left > 0 && !of.stands_in && run_.progress.undisturbed() && id < run_.progress.undisturbed()->summed.size())
    candidate.own_sums =
        std::max(0.0, (run_.progress.undisturbed()->summed[id] - run_.progress.undisturbed_time()).value());
  if (of.left > 0) candidate.last_read = std::max(candidate.last_read, passed_in);
}

// Acknowledgements wait behind sums on the uplink, so some of what is not acknowledged is done.
void Candidates::take_off_acknowledged(Candidate& of) const {
  const DeviceBook& on = run_.book(of.device);
  if (!acknowledges_late(on)) return;
  const double since = (run_.fleet.now() - on.sending_since).value();
  const double read = std::min(of.reads_sent, since), computed = std::min(of.computes_sent, since);
  of.down_busy -= read;
  of.down_again -= read;
  of.compute_busy -= computed;
  of.compute_again -= computed;
}

std::vector<Candidate> Candidates::with_server(std::vector<Candidate> devices, std::span<const LostSums> lost) {
  const bool stuck = run_.under_way == 0;
  if (run_.options.server_sums == ServerSums::never ||
      (run_.options.server_sums == ServerSums::if_nobody_else && !stuck))
    return devices;
  Candidate candidate;
  candidate.device = kServer;
  candidate.memory = candidate.uplink = candidate.downlink = kAtHand;
  candidate.compute = run_.of_server.compute;
  for (const OwnerState& of : run_.owner) {
    if (of.device == kServer && of.active()) candidate.compute_busy += server_takes(of.cost, of.left).value();
  }
  candidate.asked_first =
      run_.options.server_sums == ServerSums::if_sooner && server_keeps_up(Seconds(candidate.compute_busy), lost);
  devices.insert(devices.begin(), std::move(candidate));
  return devices;
}

SharedInterface Candidates::interface_of(std::span<const Candidate> devices) const {
  const fleet::ServerProfile& server = run_.options.stages.server;
  SharedInterface interface { .out = server.nic_out.value(), .in = server.nic_in.value() };
  for (const Candidate& of : devices) {
    if (of.is_server()) continue;
    interface.out_busy += of.down_busy * of.downlink / interface.out;
    interface.in_busy += (of.up_busy + of.sums_busy) * of.uplink / interface.in;
  }
  return interface;
}

Seconds Candidates::server_takes(const plan::OwnerCost& cost, std::int64_t sequences) const {
  return Seconds(static_cast<double>(sequences) * cost.alone.value() / run_.of_server.compute);
}

bool Candidates::server_keeps_up(Seconds busy, std::span<const LostSums> lost) {
  const Seconds left = run_.progress.ends_in();
  Seconds all = busy;
  for (const LostSums& one : lost)
    all += server_takes(plan::owner_cost(run_.work, *one.cost, one.slices, run_.plan.chunk), one.sequences);
  // Losses at a single moment say nothing about further ones.
  if (run_.losses.moments() > 1) all += run_.losses.sums_lost() * (left / (run_.fleet.now() - run_.began));
  return all <= left * kServerBehind;
}

// Acknowledgements come right after the last of the sums, and their events may not have been handled yet.
bool Candidates::acknowledges_late(const DeviceBook& on) const {
  if (on.sending > 0) return true;
  const bool has_sent = on.sending_since.value() > 0;
  return has_sent && run_.progress.undisturbed() &&
         run_.fleet.now() - on.sent_at < on.latency + run_.progress.undisturbed()->end * kAcknowledged;
}

std::int64_t Candidates::read_for_others(const OwnerState& of) {
  if (!of.shares_room) return 0;
  std::int64_t most = 0;
  for (const std::int32_t other : run_.at(of.stage).owners) {
    const OwnerState& its = run_.owner_at(other);
    if (&its == &of) break;
    if (!its.active() || its.device != of.device) continue;
    std::int64_t both = 0;
    for (std::size_t q = 0; q < of.seen.size(); ++q) both += !of.seen[q] && !its.seen[q] ? 1 : 0;
    most = std::max(most, both);
  }
  return most;
}

double Candidates::loading_left(const OwnerState& of) {
  if (of.replica || of.since == run_.began) return 0;
  const double loading = static_cast<double>(of.cost.weights.value()) / run_.book(of.device).downlink;
  return std::max(0.0, loading - kOfLink * (run_.fleet.now() - of.since).value());
}

}  // namespace cleave::sched::stages
