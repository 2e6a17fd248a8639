// The bound of a layout: uplinks of each stage, links of each owner, between the first chunk's way in and the last
// one's way out.
#include "cleave/plan/stage_bound.hpp"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <vector>

#include "cleave/plan/cost.hpp"
#include "cleave/plan/stage_cost.hpp"

namespace cleave::plan {

namespace {

double count(Bytes bytes) { return static_cast<double>(bytes.value()); }

struct Sender {
  double rate, from;  // bytes a second from this moment on
};

// The least t by which `senders` can have sent `bytes`.
double sent_by(std::vector<Sender> senders, double bytes) {
  std::ranges::sort(senders, {}, &Sender::from);
  double rate = 0, sent = 0, at = 0;
  for (std::size_t k = 0; k < senders.size(); ++k) {
    if (rate > 0 && sent + rate * (senders[k].from - at) >= bytes) return at + (bytes - sent) / rate;
    sent += rate * (senders[k].from - at);
    at = senders[k].from;
    rate += senders[k].rate;
  }
  return rate > 0 ? at + (bytes - sent) / rate : std::numeric_limits<double>::infinity();
}

class Bound {
 public:
  Bound(const StageWork& work, const StagePlan& plan, std::span<const fleet::DeviceProfile> devices,
        const fleet::ServerProfile& server)
      : work_(with_head_parts(work, plan.head_parts)), plan_(plan) {
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
      // Of several groups, each sums what its own replicas run, however many sequences that are.
      const std::int64_t sequences = plan.groups[s] == 1 ? work.batch : 0;
      operands_.push_back(count(cost.operands) * static_cast<double>(sequences));
      rates_[owner.device.value].sums += sums_.back();
    }
  }

  double of(const ServerShare& share) {
    const std::size_t stages = costs_.size();
    // First chunks in, last chunks out: hops through the stages below, on their quickest replicas.
    std::vector<double> in(stages + 1, share.before.value()), out(stages + 1, 0.0);
    for (std::size_t s = 0; s < stages; ++s) {
      in[s + 1] = in[s] + hop(s, true);
      out[s + 1] = out[s] + (costs_[s].backward() ? hop(s, false) : 0);
    }
    // Parts of the head lie beside each other: all take what the stage below them returns.
    const std::size_t parts = plan_.head_parts > 1 ? static_cast<std::size_t>(plan_.head_parts) : 0;
    for (std::size_t s = stages - parts; parts > 0 && s < stages; ++s) {
      in[s + 1] = in[s] = in[stages - parts];
      out[s] = out[stages - parts];
    }
    double bound = 0;
    std::vector<double> passed(stages);  // when a stage has sent its last dX at the earliest
    for (std::size_t s = 0; s < stages; ++s) {
      const double bytes = count(costs_[s].sent(work_.tokens()));
      std::vector<Sender> senders;
      double sums = 0;
      for (const StageReplica& replica : plan_.stages[s].replicas) {
        const Rates& rates = rates_[replica.device.value];
        senders.push_back({rates.up, std::max(count(plan_.stages[s].weights) / rates.down, in[s])});
        sums += rates.sums;
      }
      passed[s] = sent_by(senders, bytes);
      bound = std::max({bound, passed[s] + out[s], sent_by(senders, bytes + sums)});
    }
    for (std::size_t k = 0; k < plan_.owners.size(); ++k) {
      const GradientOwner& owner = plan_.owners[k];
      const auto s = static_cast<std::size_t>(owner.stage);
      const Rates& rates = rates_[owner.device.value];
      const double sending = sums_[k] / rates.up;
      // A replica that runs x of b sequences takes in 3 x + 2 (b - x) boundaries and its weights: 2 b at least. Another
      // owner reads nothing before a chunk has come to the top; the weights that it needs may come meanwhile.
      const double weights = count(owner.weights) / rates.down, begun = owner.replica ? 0 : in[stages];
      bound = std::max(bound, std::max(weights, begun) + operands_[k] / rates.down + sending);
      // A part's rows need dX of no other; its owners may be done before its replicas are.
      if (plan_.groups[s] == 1 && !costs_[s].is_part())
        bound = std::max(bound, passed[std::min(s + 1, stages - 1)] + sending);
    }
    return bound + share.after.value();
  }

 private:
  struct Rates {
    double down = 1, up = 1, flops = 1, latency = 0, sums = 0;
  };

  double hop(std::size_t s, bool forward) const {
    const std::int64_t rows = std::min(plan_.chunk, work_.seq);
    const double in = count(forward ? costs_[s].forward_operand(rows) : costs_[s].backward_operand(rows));
    const double bytes = count(forward ? costs_[s].forward_result(rows) : costs_[s].backward_result(rows));
    double least = std::numeric_limits<double>::infinity();
    for (const StageReplica& replica : plan_.stages[s].replicas) {
      const Flops back = replica.kept_slots > 0 ? costs_[s].backward_of_kept(0, rows) : costs_[s].backward(0, rows);
      const double flops = (forward ? costs_[s].forward(0, rows) : back).value();
      const Rates& rates = rates_.at(replica.device.value);
      least = std::min(least, in / rates.down + flops / rates.flops + bytes / rates.up + 2 * rates.latency);
    }
    return least;
  }

  StageWork work_;  // its head in the plan's parts
  const StagePlan& plan_;
  std::vector<StageCost> costs_;
  std::vector<double> sums_, operands_;  // of each owner: bytes
  std::unordered_map<std::int64_t, Rates> rates_;
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
