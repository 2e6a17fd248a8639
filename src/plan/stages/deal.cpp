// Replicas: every device that can hold some stage goes to the one that is poorest in uplink, the least able devices
// first; then devices move from the richest stages to the poorest while that helps.
#include <algorithm>
#include <cmath>
#include <utility>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

namespace {

constexpr std::int64_t kMostMoves = 400;
constexpr double kLeastUse = 0.05;  // of an uplink whose device has its weights late

class Dealer {
 public:
  Dealer(const Problem& problem, const Settings& settings, std::vector<Role>& roles)
      : problem_(problem), settings_(settings), roles_(roles) {
    for (const Role& role : roles_) {
      needed_.push_back(replica_bytes(role));
      const auto sent = static_cast<double>(role.cost.sent(problem.work->tokens()).value());
      sent_per_flop_.push_back(sent / stage_flops(*problem.work, role.cost));
    }
  }

  bool deal() {
    struct Able {
      std::size_t device;
      std::vector<std::size_t> roles;
    };
    std::vector<Able> order;
    const std::vector<bool> may = may_replicate(problem_, settings_);
    for (std::size_t i = 0; i < problem_.devices.size(); ++i) {
      if (!may[i]) continue;
      Able able{i, {}};
      for (std::size_t r = 0; r < roles_.size(); ++r) {
        if (fits(i, r)) able.roles.push_back(r);
      }
      if (!able.roles.empty()) order.push_back(std::move(able));
    }
    std::ranges::stable_sort(order, {}, [](const Able& able) { return able.roles.size(); });
    for (const Able& able : order) {
      const std::size_t poorest = *std::ranges::min_element(able.roles, [&](std::size_t a, std::size_t b) {
        return std::pair(riches(a), -weights(a)) < std::pair(riches(b), -weights(b));
      });
      give(able.device, poorest);
    }
    const auto most = std::min<std::int64_t>(4 * std::ssize(problem_.devices), kMostMoves);
    for (std::int64_t i = 0; i < most && move_one(); ++i) {}
    return std::ranges::none_of(roles_, [](const Role& role) { return role.replicas.empty(); });
  }

 private:
  double weights(std::size_t r) const { return static_cast<double>(roles_[r].cost.weights().value()); }
  double riches(std::size_t r) const { return roles_[r].uplink / roles_[r].demand; }
  double height(std::size_t r) const { return static_cast<double>(r) / static_cast<double>(roles_.size()); }

  bool fits(std::size_t device, std::size_t r) const {
    if (weights(r) / problem_.down[device] > settings_.loading + settings_.deeper * height(r)) return false;
    const double room = problem_.memory[device] - static_cast<double>(roles_[r].cost.at_work().value());
    return needed_[r] <= room - settings_.for_sums * problem_.memory[device];
  }

  // An uplink is of use when the weights are there; the stages below fill meanwhile. Where stages are cut by processors
  // too, it is of no more use than the processor gives it to send.
  double use(std::size_t device, std::size_t r) const {
    const double filling = settings_.owning * (0.105 + 0.063 * height(r));
    const double late = std::max(0.0, weights(r) / problem_.down[device] - filling);
    double rate = problem_.up[device];
    if (!std::isinf(settings_.computing)) rate = std::min(rate, problem_.flops[device] * sent_per_flop_[r]);
    return rate * std::max(kLeastUse, 1 - late / settings_.owning);
  }

  void give(std::size_t device, std::size_t r) {
    roles_[r].replicas.push_back(device);
    roles_[r].uplink += use(device, r);
  }

  bool move_one() {
    std::size_t poor = 0;
    for (std::size_t r = 1; r < roles_.size(); ++r) {
      if (riches(r) < riches(poor)) poor = r;
    }
    double best = riches(poor) + 1;
    std::size_t from = roles_.size(), which = 0;
    for (std::size_t r = 0; r < roles_.size(); ++r) {
      if (r == poor || roles_[r].replicas.size() < 2) continue;
      for (std::size_t k = 0; k < roles_[r].replicas.size(); ++k) {
        const std::size_t device = roles_[r].replicas[k];
        if (!fits(device, poor)) continue;
        const double after = std::min((roles_[r].uplink - use(device, r)) / roles_[r].demand,
                                      (roles_[poor].uplink + use(device, poor)) / roles_[poor].demand);
        if (after > best) {
          best = after;
          from = r;
          which = k;
        }
      }
    }
    if (from == roles_.size()) return false;
    const std::size_t device = roles_[from].replicas[which];
    roles_[from].replicas.erase(roles_[from].replicas.begin() + static_cast<std::ptrdiff_t>(which));
    roles_[from].uplink -= use(device, from);
    give(device, poor);
    return true;
  }

  const Problem& problem_;
  const Settings& settings_;
  std::vector<Role>& roles_;
  std::vector<double> needed_, sent_per_flop_;  // of each role: memory; bytes that a FLOP of its sequences sends
};

}  // namespace

bool deal_replicas(const Problem& problem, const Settings& settings, std::vector<Role>& roles) {
  return Dealer(problem, settings, roles).deal();
}

}  // namespace cleave::plan::stages
