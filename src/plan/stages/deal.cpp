// Replicas: every device that can hold some stage goes to the one that is poorest in uplink, the least able devices
// first; then devices move from the richest stages to the poorest while that helps.
#include <algorithm>
#include <cmath>
#include <utility>

#include "stages/layout.hpp"
#include "stages/run_book.hpp"

namespace cleave::plan::stages {

namespace {

constexpr std::int64_t kMostMoves = 400;
constexpr double kLeastUse = 0.05;  // of an uplink whose device has its weights late

class Dealer {
 public:
  Dealer(const Problem& problem, const Settings& settings, std::vector<Role>& roles)
      : problem_(problem), settings_(settings), roles_(roles), uses_(roles.size()) {
    for (std::size_t r = 0; r < roles_.size(); ++r) {
      const Role& role = roles_[r];
      weights_.push_back(in_bytes(role.cost.weights()));
      at_work_.push_back(in_bytes(role.cost.at_work()));
      in_time_.push_back(settings.loading + settings.deeper * height(r));
      const RunFigures& of = problem.book->figures(role.cost, settings.chunk);
      needed_.push_back(of.replica);
      const auto sent = static_cast<double>(role.cost.sent(problem.work->tokens()).value());
      sent_per_flop_.push_back(sent / of.flops);
    }
  }

  bool deal() {
    struct Able {
      std::size_t device, first, end;  // of `able_for`: the roles that it can have
    };
    std::vector<Able> order;
    std::vector<std::size_t> able_for;
    const std::vector<bool> may = may_replicate(problem_, settings_);
    for (std::size_t i = 0; i < problem_.devices.size(); ++i) {
      if (!may[i]) continue;
      const std::size_t first = able_for.size();
      for (std::size_t r = 0; r < roles_.size(); ++r) {
        if (fits(i, r)) able_for.push_back(r);
      }
      if (able_for.size() > first) order.push_back({i, first, able_for.size()});
    }
    std::ranges::stable_sort(order, {}, [](const Able& able) { return able.end - able.first; });
    for (const Able& able : order) {
      std::size_t poorest = able_for[able.first];
      for (std::size_t k = able.first + 1; k < able.end; ++k) {
        const std::size_t r = able_for[k];
        if (std::pair(riches(r), -weights_[r]) < std::pair(riches(poorest), -weights_[poorest])) poorest = r;
      }
      give(able.device, poorest);
    }
    const auto most = std::min<std::int64_t>(4 * std::ssize(problem_.devices), kMostMoves);
    for (std::int64_t i = 0; i < most && move_one(); ++i) {}
    return std::ranges::none_of(roles_, [](const Role& role) { return role.replicas.empty(); });
  }

 private:
  double riches(std::size_t r) const { return roles_[r].uplink / roles_[r].demand; }
  double height(std::size_t r) const { return static_cast<double>(r) / static_cast<double>(roles_.size()); }

  bool fits(std::size_t device, std::size_t r) const {
    const double room = problem_.memory[device] - at_work_[r];
    return needed_[r] <= room - settings_.for_sums * problem_.memory[device] &&
           weights_[r] / problem_.down[device] <= in_time_[r];
  }

  // An uplink is of use when the weights are there; the stages below fill meanwhile. Where stages are cut by processors
  // too, it is of no more use than the processor gives it to send.
  double use(std::size_t device, std::size_t r) const {
    const double filling = settings_.owning * (0.105 + 0.063 * height(r));
    const double late = std::max(0.0, weights_[r] / problem_.down[device] - filling);
    double rate = problem_.up[device];
    if (!std::isinf(settings_.computing)) rate = std::min(rate, problem_.flops[device] * sent_per_flop_[r]);
    return rate * std::max(kLeastUse, 1 - late / settings_.owning);
  }

  void give(std::size_t device, std::size_t r) {
    roles_[r].replicas.push_back(device);
    uses_[r].push_back(use(device, r));
    roles_[r].uplink += uses_[r].back();
  }

  bool move_one() {
    std::size_t poor = 0;
    for (std::size_t r = 1; r < roles_.size(); ++r) {
      if (riches(r) < riches(poor)) poor = r;
    }
    double best = riches(poor) + 1;
    std::size_t from = roles_.size(), which = 0;
    for (std::size_t r = 0; r < roles_.size(); ++r) {
      if (r == poor || roles_[r].replicas.size() < 2 || riches(r) <= best) continue;
      for (std::size_t k = 0; k < roles_[r].replicas.size(); ++k) {
        const std::size_t device = roles_[r].replicas[k];
        const double left = (roles_[r].uplink - uses_[r][k]) / roles_[r].demand;
        if (left <= best || !fits(device, poor)) continue;
        const double after = std::min(left, (roles_[poor].uplink + use(device, poor)) / roles_[poor].demand);
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
    roles_[from].uplink -= uses_[from][which];
    uses_[from].erase(uses_[from].begin() + static_cast<std::ptrdiff_t>(which));
    give(device, poor);
    return true;
  }

  const Problem& problem_;
  const Settings& settings_;
  std::vector<Role>& roles_;
  std::vector<std::vector<double>> uses_;       // of each role, of its replicas' uplinks
  std::vector<double> needed_, sent_per_flop_;  // of each role: memory; bytes that a FLOP of its sequences sends
  std::vector<double> weights_, at_work_;       // bytes
  std::vector<double> in_time_;                 // seconds in which weights are to come
};

}  // namespace

bool deal_replicas(const Problem& problem, const Settings& settings, std::vector<Role>& roles) {
  return Dealer(problem, settings, roles).deal();
}

}  // namespace cleave::plan::stages
