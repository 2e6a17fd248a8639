// The bound of a layout in stages: the time of each stage's uplinks and of each owner's links, after the first chunk
// has come in and before the last one has gone out.
#include "cleave/plan/stage_bound.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cleave/plan/cost.hpp"
#include "cleave/plan/stage_cost.hpp"
#include "stages/tile_rounds.hpp"

namespace cleave::plan {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// A device that sends at a rate (bytes a second) from a time on.
struct Sender {
  double rate, from;
};

// The least time by which `senders` together can have sent `bytes`.
double sent_by(std::vector<Sender> senders, double bytes) {
  std::ranges::sort(senders, {}, &Sender::from);
  double rate = 0, sent = 0, at = 0;
  for (std::size_t k = 0; k < senders.size(); ++k) {
    if (rate > 0 && sent + rate * (senders[k].from - at) >= bytes) return at + (bytes - sent) / rate;
    sent += rate * (senders[k].from - at);
    at = senders[k].from;
    rate += senders[k].rate;
  }
  return rate > 0 ? at + (bytes - sent) / rate : kNever;
}

// The least time by which they can have sent `passes` passes of sequences, each of `bytes` bytes by one sender.
double sent_by(const std::vector<Sender>& senders, std::int64_t passes, double bytes) {
  const double together = sent_by(senders, static_cast<double>(passes) * bytes);
  struct Next {
    double at, each;  // when the sender's next pass is sent; seconds of a pass
    bool operator>(const Next& other) const { return at > other.at; }
  };
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  for (const Sender& sender : senders) {
    // Slightly fewer than they may have sent, for rounding.
    const double sent = std::floor(std::max(0.0, together - sender.from) * sender.rate / bytes - 1e-6);
    const double whole = std::max(0.0, sent), each = bytes / sender.rate;
    passes -= static_cast<std::int64_t>(whole);
    next.push({sender.from + (whole + 1) * each, each});
  }
  double last = together;
  for (; passes > 0; --passes) {
    const Next first = next.top();
    next.pop();
    last = std::max(last, first.at);
    next.push({first.at + first.each, first.each});
  }
  return last;
}

class Bound {
 public:
  Bound(const StageWork& work, const StagePlan& plan, std::span<const fleet::DeviceProfile> devices,
        const fleet::ServerProfile& server)
      : work_(with_head_parts(work, plan.head_parts)), plan_(plan), tiles_(devices, server) {
    for (const fleet::DeviceProfile& device : devices) {
      Rates& rates = rates_[device.id.value];
      rates.down = std::min(device.downlink, server.nic_out).value();
      rates.up = std::min(device.uplink, server.nic_in).value();
      rates.flops = device.compute.value();
      rates.latency = device.latency.value();
    }
    for (const Stage& stage : plan.stages) costs_.emplace_back(work_, stage.first, stage.end, plan.chunk);
    for (const GradientOwner& owner : plan.owners) {
      const auto s = static_cast<std::size_t>(owner.stage);
      const OwnerCost cost = owner_cost(work_, costs_[s], owner.slices, plan.chunk);
      const std::int64_t size = plan.groups[s] == 1 ? size_of(work.wire) : sum_bytes(work.wire);
      sums_.push_back(cost.elements * static_cast<double>(size));
      // With several groups, an owner may sum no more than its own group's replicas run, which may be nothing.
      const std::int64_t sequences = plan.groups[s] == 1 ? work.batch : 0;
      operands_.push_back(in_bytes(least_read(costs_[s], owner, cost)) * static_cast<double>(sequences));
    }
  }

  double of(const ServerShare& share) {
    double bound = 0, before = share.before.value();  // weights need not wait for the server's first kernels
    std::size_t first = 0;
    for (std::size_t s = 0; s < costs_.size(); ++s) {
      if (s + 1 < costs_.size() && plan_.stages[s + 1].round == plan_.stages[s].round) continue;
      const Phase round{.first = first, .end = s + 1};
      first = s + 1;
      if (plan_.stages[s].tiles) {
        bound += std::exchange(before, 0) + in_tiles(plan_.stages[s], false) + in_tiles(plan_.stages[s], true);
        continue;
      }
      // Sequences pass the last round both ways in one phase, other rounds in two phases.
      if (round.end == costs_.size()) {
        bound += phase(round, before);
        continue;
      }
      bound += phase({round.first, round.end, true, false}, std::exchange(before, 0));
      const bool back = std::any_of(costs_.begin() + static_cast<std::ptrdiff_t>(round.first),
                                    costs_.begin() + static_cast<std::ptrdiff_t>(round.end),
                                    [](const StageCost& cost) { return cost.backward(); });
      if (back) bound += phase({round.first, round.end, false, true}, 0);
    }
    return bound + share.after.value();
  }

 private:
  // What a device takes in for all owners on it.
  struct Reading {
    double weights = 0, operands = 0;         // bytes
    double begun = kNever, sending = kNever;  // seconds: first operands; the shortest sending of sums
    std::int64_t stage = -1;                  // of the owner that was added last

    // Adds an owner. Owners of one stage share weights and operands. Requires: owners come in the order of their
    // stages.
    void add(const Reading& more) {
      if (more.stage != stage) {
        weights += more.weights;
        operands += more.operands;
      }
      stage = more.stage;
      begun = std::min(begun, more.begun);
      sending = std::min(sending, more.sending);  // any of them may be sent last
    }
    [[nodiscard]] double ends(double down) const { return std::max(weights / down, begun) + operands / down + sending; }
  };

  // Stages [first, end) that sequences pass in one phase, and in which directions.
  struct Phase {
    std::size_t first = 0, end = 0;
    bool forth = true, back = true;

    [[nodiscard]] bool has(std::int64_t stage) const {
      return stage >= static_cast<std::int64_t>(first) && stage < static_cast<std::int64_t>(end);
    }
  };

  // The least bytes that an owner's device takes in of one sequence, whoever runs it. A replica of a whole head that
  // runs the sequence computes maxima and sums of rows itself, and is sent targets only.
  [[nodiscard]] Bytes least_read(const StageCost& stage, const GradientOwner& owner, const OwnerCost& cost) const {
    return owner.replica && stage.is_head() ? std::min(cost.operands, stage.taken_in(work_.seq)) : cost.operands;
  }

  double in_tiles(const Stage& stage, bool back) { return tiles_(work_, stage.first, stage.end, back); }

  // Least time of a phase, if devices hold nothing at its begin. `before`: when the first chunk is at the server.
  double phase(const Phase& of, double before) const {
    const std::size_t stages = of.end;
    // in[s]: when the first chunk can reach stage s. out[s]: time of the last chunk from stage s to the end. Both by
    // way of the quickest replicas.
    std::vector<double> in(stages + 1, before), out(stages + 1, 0.0);
    for (std::size_t s = of.first; s < stages; ++s) {
      in[s + 1] = first_passed(s, true, in[s]);
      out[s + 1] = out[s] + (of.back && costs_[s].backward() ? hop(s, false) : 0);
    }
    // Parts of the head are beside each other: each of them reads what the stage below returns.
    const bool head = of.end == costs_.size();
    const std::size_t parts = head && plan_.head_parts > 1 ? static_cast<std::size_t>(plan_.head_parts) : 0;
    for (std::size_t s = stages - parts; parts > 0 && s < stages; ++s) {
      in[s + 1] = in[s] = in[stages - parts];
      out[s] = out[stages - parts];
    }
    if (!of.forth) {  // chunks come from the top
      in[stages] = 0;
      for (std::size_t s = stages; s-- > of.first;)
        in[s] = costs_[s].backward() ? first_passed(s, false, in[s + 1]) : in[s + 1];
    }
    std::unordered_map<std::int64_t, double> sums;  // by device: bytes of its owners' sums
    for (std::size_t k = 0; of.back && k < plan_.owners.size(); ++k) {
      if (of.has(plan_.owners[k].stage)) sums[plan_.owners[k].device.value] += sums_[k];
    }
    const double summed = of.forth ? in[stages] : 0;  // when the first sums can exist
    double bound = 0;
    std::vector<double> passed(stages);  // when a stage has sent its last dX at the earliest
    for (std::size_t s = stages; s-- > of.first;) {
      // When the first chunk of the stage is there.
      const double begun = of.forth ? in[s] : in[s + 1];
      std::vector<Sender> senders, with_sums;
      for (const StageReplica& replica : plan_.stages[s].replicas) {
        const Rates& rates = rates_.at(replica.device.value);
        senders.push_back({rates.up, std::max(in_bytes(plan_.stages[s].weights) / rates.down, begun)});
        with_sums.push_back(senders.back());
        if (const auto own = sums.find(replica.device.value); own != sums.end()) {
          double& from = with_sums.back().from;
          from = std::max(from, std::min(from, summed) + own->second / rates.up);
        }
      }
      passed[s] = all_sent(s, of, senders);
      if (of.back) bound = std::max(bound, all_sent(s, of, with_sums));
      // The last result of the stages above passes this stage afterwards.
      if (s + 1 < stages && out[s + 1] > out[s]) passed[s] = std::max(passed[s], passed[s + 1] + out[s + 1] - out[s]);
      bound = std::max(bound, passed[s] + out[s]);
    }
    if (!of.back) return bound;
    return std::max({bound, all_read(of, summed), all_summed(of, passed)});
  }

  // When devices can have read everything that their owners sum, and have sent the sums of one owner. `gone_back`: when
  // the first chunk has come to the top.
  double all_read(const Phase& of, double gone_back) const {
    std::unordered_map<std::int64_t, Reading> readings;  // of each device
    for (std::size_t k = 0; k < plan_.owners.size(); ++k) {
      const GradientOwner& owner = plan_.owners[k];
      if (!of.has(owner.stage)) continue;
      const Stage& stage = plan_.stages[static_cast<std::size_t>(owner.stage)];
      // A replica that runs x of b sequences takes in 3 x + 2 (b - x) boundaries, at least 2 b. An owner that is no
      // replica reads nothing before a chunk has come to the top.
      readings[owner.device.value].add({.weights = in_bytes(owner.replica ? stage.weights : owner.weights),
                                        .operands = operands_[k],
                                        .begun = owner.replica ? 0 : gone_back,
                                        .sending = sending(k),
                                        .stage = owner.stage});
    }
    double last = 0;
    for (const auto& [device, reading] : readings) last = std::max(last, reading.ends(rates_.at(device).down));
    return last;
  }

  // When owners can have sent their sums, which are complete once all sequences have passed the stage above.
  double all_summed(const Phase& of, const std::vector<double>& passed) const {
    double last = 0;
    for (std::size_t k = 0; k < plan_.owners.size(); ++k) {
      const auto s = static_cast<std::size_t>(plan_.owners[k].stage);
      // Not for a part of the head, whose sums need no dX of another stage. Nor for the highest stage of a round that
      // is only passed backward: its dY is there at the begin.
      if (!of.has(plan_.owners[k].stage) || plan_.groups[s] > 1 || costs_[s].is_part()) continue;
      if (s + 1 < of.end) last = std::max(last, passed[s + 1] + sending(k));
      if (s + 1 == costs_.size()) last = std::max(last, passed[s] + sending(k));
    }
    return last;
  }

  double sending(std::size_t owner) const { return sums_[owner] / rates_.at(plan_.owners[owner].device.value).up; }

  struct Rates {
    double down = 1, up = 1, flops = 1, latency = 0;
  };

  // What a stage's replicas send in a phase.
  Bytes results(std::size_t s, const Phase& of) const {
    const Bytes unwanted = returns(s) ? Bytes(0) : costs_[s].backward_result(work_.tokens());
    if (of.forth) return of.back ? costs_[s].sent(work_.tokens()) - unwanted : costs_[s].forward_result(work_.tokens());
    return costs_[s].backward() ? costs_[s].backward_result(work_.tokens()) - unwanted : Bytes(0);
  }

  // When a stage can have sent all its results of a phase. All results of a sequence in one direction come from one
  // replica.
  double all_sent(std::size_t s, const Phase& of, const std::vector<Sender>& senders) const {
    const double bytes = in_bytes(results(s, of));
    const Bytes forth = costs_[s].forward_result(work_.seq), back = costs_[s].backward_result(work_.seq);
    const bool both = of.forth && of.back && costs_[s].twice();
    if (bytes <= 0 || (both && (forth != back || !returns(s)))) return sent_by(senders, bytes);
    const std::int64_t passes = work_.batch * (both ? 2 : 1);
    return sent_by(senders, passes, bytes / static_cast<double>(passes));
  }

  // The stage returns dX. The lowest stage with a backward pass does not where the embeddings are frozen.
  bool returns(std::size_t s) const {
    if (work_.trains_embeddings || !costs_[s].backward() || costs_[s].has_logits()) return true;
    const auto lowest = std::ranges::find_if(costs_, [](const StageCost& cost) { return cost.backward(); });
    return s != static_cast<std::size_t>(lowest - costs_.begin());
  }

  // Least time of a chunk through a stage whose weights are there.
  double hop(std::size_t s, bool forward) const {
    double least = kNever;
    for (const StageReplica& replica : plan_.stages[s].replicas)
      least = std::min(least, chunk_time(s, replica, forward));
    return least;
  }

  // When the first chunk can have passed a stage that it reaches at `begun`: a replica must have its weights before.
  double first_passed(std::size_t s, bool forward, double begun) const {
    const double weights = in_bytes(plan_.stages[s].weights);
    double least = kNever;
    for (const StageReplica& replica : plan_.stages[s].replicas) {
      const double there = std::max(begun, weights / rates_.at(replica.device.value).down);
      least = std::min(least, there + chunk_time(s, replica, forward));
    }
    return least;
  }

  double chunk_time(std::size_t s, const StageReplica& replica, bool forward) const {
    const std::int64_t rows = std::min(plan_.chunk, work_.seq);
    const double in = in_bytes(forward ? costs_[s].forward_operand(rows) : costs_[s].backward_operand(rows));
    const double bytes = forward      ? in_bytes(costs_[s].forward_result(rows))
                         : returns(s) ? in_bytes(costs_[s].backward_result(rows))
                                      : 0;
    const Flops back = replica.kept_slots > 0 ? costs_[s].backward_of_kept(0, rows) : costs_[s].backward(0, rows);
    const double flops = (forward ? costs_[s].forward(0, rows) : back).value();
    const Rates& rates = rates_.at(replica.device.value);
    return in / rates.down + flops / rates.flops + bytes / rates.up + 2 * rates.latency;
  }

  StageWork work_;  // its head in the plan's parts
  const StagePlan& plan_;
  std::vector<StageCost> costs_;
  std::vector<double> sums_, operands_;  // of each owner: bytes
  std::unordered_map<std::int64_t, Rates> rates_;
  stages::TilesBound tiles_;
};

}  // namespace

ServerShare server_share(const model::StepGraph& graph, const fleet::ServerProfile& server) {
  ServerShare share;
  for (const model::Operation& op : graph.operations) {
    if (op.kind == model::OpKind::embed) share.before += kernel_time(op, server);
    if (op.kind == model::OpKind::adamw && graph.grad_norm.valid() && op.in.size() > 1)
      share.after += kernel_time(op, server);
  }
  return share;
}

Seconds stage_lower_bound(const StageWork& work, const StagePlan& plan, std::span<const fleet::DeviceProfile> devices,
                          const fleet::ServerProfile& server, const ServerShare& share) {
  return Seconds(Bound(work, plan, devices, server).of(share));
}

}  // namespace cleave::plan
