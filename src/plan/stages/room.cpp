// Moves replicas between stages by memory. A stage whose replicas lack room for its sums gets a device of another
// stage, or exchanges devices with it, while the two stages together lack less than before.
#include <algorithm>
#include <numeric>

#include "stages/layout.hpp"
#include "stages/run_book.hpp"

namespace cleave::plan::stages {

namespace {

constexpr double kEnoughRoom = 1.005;
constexpr int kMostExchanges = 400;

class Exchange {
 public:
  Exchange(const Problem& problem, const Settings& settings, std::vector<StageDraft>& stages)
      : problem_(problem), stages_(stages), room_(stages.size()) {
    Bytes at_work{0};
    for (const StageDraft& draft : stages_) at_work = std::max(at_work, draft.cost.at_work());
    for (std::size_t r = 0; r < stages_.size(); ++r) {
      const RunFigures& of = problem.book->figures(stages_[r].cost, settings.chunk);
      beside_.push_back(of.replica + in_bytes(at_work + of.beside));
      beside_[r] += of.rounding;
      sums_.push_back(of.sums);
      weights_.push_back(of.weights);
      const double height = static_cast<double>(r) / static_cast<double>(stages_.size());
      in_time_.push_back(settings.loading + settings.deeper * height);
      for (const std::size_t device : stages_[r].replicas) room_[r] += room(device, r);
    }
  }

  void run() {
    for (int i = 0; i < kMostExchanges; ++i) {
      std::vector<std::size_t> order(stages_.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::ranges::stable_sort(order, {}, [&](std::size_t r) { return room_[r]; });
      if (room_[order.front()] >= kEnoughRoom) return;
      const bool helped =
          std::ranges::any_of(order, [&](std::size_t r) { return room_[r] < kEnoughRoom && exchange(r); });
      if (!helped) return;
    }
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  // The share of a stage's sums that a device would have room for as its replica.
  double room(std::size_t device, std::size_t r) const {
    if (sums_[r] == 0) return kEnoughRoom;
    return std::clamp((problem_.memory[device] - beside_[r]) / sums_[r], 0.0, kEnoughRoom);
  }
  bool fits(std::size_t device, std::size_t r) const {
    return beside_[r] <= problem_.memory[device] && weights_[r] / problem_.down[device] <= in_time_[r];
  }

  bool exchange(std::size_t poor) {
    double best = 1e-4;
    const auto lack = [](double room) { return std::max(0.0, kEnoughRoom - room); };
    std::size_t from = kNone, given = 0, taken = kNone;
    const auto consider = [&](std::size_t r, std::size_t k, std::size_t back, double poorer, double other) {
      const double helps = lack(room_[poor]) + lack(room_[r]) - lack(poorer) - lack(other);
      if (helps <= best) return;
      best = helps;
      from = r;
      given = k;
      taken = back;
    };
    std::vector<double> own;  // room of each of its replicas
    for (const std::size_t device : stages_[poor].replicas) own.push_back(room(device, poor));
    for (std::size_t r = 0; r < stages_.size(); ++r) {
      // An upper bound: no exchange helps by more than what the two lack.
      if (r == poor || lack(room_[poor]) + lack(room_[r]) <= best) continue;
      for (std::size_t k = 0; k < stages_[r].replicas.size(); ++k) {
        const std::size_t device = stages_[r].replicas[k];
        if (!fits(device, poor)) continue;
        const double gained = room_[poor] + room(device, poor), left = room_[r] - room(device, r);
        if (stages_[r].replicas.size() > 1) consider(r, k, kNone, gained, left);
        for (std::size_t back = 0; back < stages_[poor].replicas.size(); ++back) {
          const std::size_t other = stages_[poor].replicas[back];
          const double poorer = gained - own[back];
          // An upper bound: as if the other stage lacked nothing afterwards.
          if (lack(room_[poor]) + lack(room_[r]) - lack(poorer) <= best || !fits(other, r)) continue;
          consider(r, k, back, poorer, left + room(other, r));
        }
      }
    }
    if (from == kNone) return false;
    std::vector<std::size_t>&rich = stages_[from].replicas, &poors = stages_[poor].replicas;
    const std::size_t device = rich[given];
    room_[from] -= room(device, from);
    room_[poor] += room(device, poor);
    if (taken == kNone) {
      rich.erase(rich.begin() + static_cast<std::ptrdiff_t>(given));
      poors.push_back(device);
    } else {
      room_[poor] -= room(poors[taken], poor);
      room_[from] += room(poors[taken], from);
      std::swap(rich[given], poors[taken]);
    }
    return true;
  }

  const Problem& problem_;
  std::vector<StageDraft>& stages_;
  std::vector<double> room_, beside_;             // of each stage: sum of room(); bytes of a replica without sums
  std::vector<double> sums_, weights_, in_time_;  // bytes, bytes, and seconds within which weights must come
};

}  // namespace

void make_room_for_sums(const Problem& problem, const Settings& settings, std::vector<StageDraft>& stages) {
  Exchange(problem, settings, stages).run();
}

}  // namespace cleave::plan::stages
