// Replicas dealt again by memory: where it is short, a stage that lacks room for its sums gets devices from others, or
// exchanges devices with them, while the two together lack less.
#include <algorithm>
#include <numeric>

#include "stages/layout.hpp"

namespace cleave::plan::stages {

namespace {

constexpr double kEnough = 1.005;
constexpr int kMostExchanges = 400;

class Exchange {
 public:
  Exchange(const Problem& problem, const Settings& settings, std::vector<Role>& roles)
      : problem_(problem), settings_(settings), roles_(roles), room_(roles.size()) {
    Bytes at_work{0};
    for (const Role& role : roles_) at_work = std::max(at_work, role.cost.at_work());
    for (std::size_t r = 0; r < roles_.size(); ++r) {
      const OwnerCost typical = owner_cost(*problem.work, roles_[r].cost,
                                           slices_between(*problem.work, roles_[r].cost, 0.4, 0.6), settings.chunk);
      beside_.push_back(replica_bytes(roles_[r]) +
                        static_cast<double>((at_work + typical.at_work + typical.waiting(true)).value()));
      beside_[r] += rounding_bytes(*problem.work, roles_[r]);
      for (const std::size_t device : roles_[r].replicas) room_[r] += room(device, r);
    }
  }

  void run() {
    for (int i = 0; i < kMostExchanges; ++i) {
      std::vector<std::size_t> order(roles_.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::ranges::stable_sort(order, {}, [&](std::size_t r) { return room_[r]; });
      if (room_[order.front()] >= kEnough) return;
      const bool helped = std::ranges::any_of(order, [&](std::size_t r) { return room_[r] < kEnough && exchange(r); });
      if (!helped) return;
    }
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  // Share of a stage's sums that a replica of it has room for.
  double room(std::size_t device, std::size_t r) const {
    const double elements = roles_[r].cost.gradient_elements();
    if (elements == 0) return kEnough;
    const double left = problem_.memory[device] - beside_[r];
    return std::clamp(left / (elements * static_cast<double>(sum_bytes(problem_.work->wire))), 0.0, kEnough);
  }
  bool fits(std::size_t device, std::size_t r) const {
    const double height = static_cast<double>(r) / static_cast<double>(roles_.size());
    const double late = static_cast<double>(roles_[r].cost.weights().value()) / problem_.down[device];
    return late <= settings_.loading + settings_.deeper * height && beside_[r] <= problem_.memory[device];
  }

  bool exchange(std::size_t poor) {
    double best = 1e-4;
    const auto lack = [](double room) { return std::max(0.0, kEnough - room); };
    std::size_t from = kNone, given = 0, taken = kNone;
    const auto consider = [&](std::size_t r, std::size_t k, std::size_t back, double poorer, double other) {
      const double helps = lack(room_[poor]) + lack(room_[r]) - lack(poorer) - lack(other);
      if (helps <= best) return;
      best = helps;
      from = r;
      given = k;
      taken = back;
    };
    for (std::size_t r = 0; r < roles_.size(); ++r) {
      if (r == poor) continue;
      for (std::size_t k = 0; k < roles_[r].replicas.size(); ++k) {
        const std::size_t device = roles_[r].replicas[k];
        if (!fits(device, poor)) continue;
        const double gained = room_[poor] + room(device, poor), left = room_[r] - room(device, r);
        if (roles_[r].replicas.size() > 1) consider(r, k, kNone, gained, left);
        for (std::size_t back = 0; back < roles_[poor].replicas.size(); ++back) {
          const std::size_t other = roles_[poor].replicas[back];
          if (fits(other, r)) consider(r, k, back, gained - room(other, poor), left + room(other, r));
        }
      }
    }
    if (from == kNone) return false;
    std::vector<std::size_t>&rich = roles_[from].replicas, &own = roles_[poor].replicas;
    const std::size_t device = rich[given];
    room_[from] -= room(device, from);
    room_[poor] += room(device, poor);
    if (taken == kNone) {
      rich.erase(rich.begin() + static_cast<std::ptrdiff_t>(given));
      own.push_back(device);
    } else {
      room_[poor] -= room(own[taken], poor);
      room_[from] += room(own[taken], from);
      std::swap(rich[given], own[taken]);
    }
    return true;
  }

  const Problem& problem_;
  const Settings& settings_;
  std::vector<Role>& roles_;
  std::vector<double> room_, beside_;
};

}  // namespace

void make_room_for_sums(const Problem& problem, const Settings& settings, std::vector<Role>& roles) {
  Exchange(problem, settings, roles).run();
}

}  // namespace cleave::plan::stages
