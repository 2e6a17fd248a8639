// Replicas. A stage's supply is the uplink of its replicas over its demand. Every device that can hold some stage
// becomes a replica of the one with the least supply, devices with the fewest possible stages first. Then devices move
// from stages with more supply to the one with the least, while that helps.
#include <algorithm>
#include <cmath>
#include <utility>

#include "stages/layout.hpp"
#include "stages/run_book.hpp"

namespace cleave::plan::stages {

namespace {

constexpr std::int64_t kMostMoves = 400;
constexpr double kLeastUse = 0.05;  // share of an uplink that counts in any case, however late its device's weights are

class Dealer {
 public:
  Dealer(const Problem& problem, const Settings& settings, std::vector<StageDraft>& stages)
      : problem_(problem), settings_(settings), stages_(stages), uses_(stages.size()) {
    for (std::size_t r = 0; r < stages_.size(); ++r) {
      const StageDraft& draft = stages_[r];
      weights_.push_back(in_bytes(draft.cost.weights()));
      at_work_.push_back(in_bytes(draft.cost.at_work()));
      in_time_.push_back(settings.loading + settings.deeper * height(r));
      const RunFigures& of = problem.book->figures(draft.cost, settings.chunk);
      needed_.push_back(of.replica);
      const auto sent = static_cast<double>(draft.cost.sent(problem.work->tokens()).value());
      sent_per_flop_.push_back(sent / of.flops);
    }
  }

  bool deal() {
    struct Able {
      std::size_t device, first, end;  // the stages that the device can hold: able_for[first, end)
    };
    std::vector<Able> order;
    std::vector<std::size_t> able_for;
    const std::vector<bool> may = may_replicate(problem_, settings_);
    for (std::size_t i = 0; i < problem_.devices.size(); ++i) {
      if (!may[i]) continue;
      const std::size_t first = able_for.size();
      for (std::size_t r = 0; r < stages_.size(); ++r) {
        if (fits(i, r)) able_for.push_back(r);
      }
      if (able_for.size() > first) order.push_back({i, first, able_for.size()});
    }
    std::ranges::stable_sort(order, {}, [](const Able& able) { return able.end - able.first; });
    for (const Able& able : order) {
      std::size_t scarcest = able_for[able.first];
      for (std::size_t k = able.first + 1; k < able.end; ++k) {
        const std::size_t r = able_for[k];
        if (std::pair(supply(r), -weights_[r]) < std::pair(supply(scarcest), -weights_[scarcest])) scarcest = r;
      }
      give(able.device, scarcest);
    }
    const auto most = std::min<std::int64_t>(4 * std::ssize(problem_.devices), kMostMoves);
    for (std::int64_t i = 0; i < most && move_one(); ++i) {}
    return std::ranges::none_of(stages_, [](const StageDraft& draft) { return draft.replicas.empty(); });
  }

 private:
  double supply(std::size_t r) const { return stages_[r].uplink / stages_[r].demand; }
  double height(std::size_t r) const { return static_cast<double>(r) / static_cast<double>(stages_.size()); }

  bool fits(std::size_t device, std::size_t r) const {
    const double room = problem_.memory[device] - at_work_[r];
    return needed_[r] <= room - settings_.for_sums * problem_.memory[device] &&
           weights_[r] / problem_.down[device] <= in_time_[r];
  }

  // Bytes a second that a device's uplink is worth to a stage: less where its weights come later than the first
  // sequences (the stages below must fill first). Where stages are cut by processors too, no more than its processor
  // has to send.
  double use(std::size_t device, std::size_t r) const {
    const double filling = settings_.owning * (0.105 + 0.063 * height(r));
    const double late = std::max(0.0, weights_[r] / problem_.down[device] - filling);
    double rate = problem_.up[device];
    if (!std::isinf(settings_.computing)) rate = std::min(rate, problem_.flops[device] * sent_per_flop_[r]);
    return rate * std::max(kLeastUse, 1 - late / settings_.owning);
  }

  void give(std::size_t device, std::size_t r) {
    stages_[r].replicas.push_back(device);
    uses_[r].push_back(use(device, r));
    stages_[r].uplink += uses_[r].back();
  }

  bool move_one() {
    std::size_t scarce = 0;
    for (std::size_t r = 1; r < stages_.size(); ++r) {
      if (supply(r) < supply(scarce)) scarce = r;
    }
    double best = supply(scarce) + 1;
    std::size_t from = stages_.size(), which = 0;
    for (std::size_t r = 0; r < stages_.size(); ++r) {
      if (r == scarce || stages_[r].replicas.size() < 2 || supply(r) <= best) continue;
      for (std::size_t k = 0; k < stages_[r].replicas.size(); ++k) {
        const std::size_t device = stages_[r].replicas[k];
        const double left = (stages_[r].uplink - uses_[r][k]) / stages_[r].demand;
        if (left <= best || !fits(device, scarce)) continue;
        const double after = std::min(left, (stages_[scarce].uplink + use(device, scarce)) / stages_[scarce].demand);
        if (after > best) {
          best = after;
          from = r;
          which = k;
        }
      }
    }
    if (from == stages_.size()) return false;
    const std::size_t device = stages_[from].replicas[which];
    stages_[from].replicas.erase(stages_[from].replicas.begin() + static_cast<std::ptrdiff_t>(which));
    stages_[from].uplink -= uses_[from][which];
    uses_[from].erase(uses_[from].begin() + static_cast<std::ptrdiff_t>(which));
    give(device, scarce);
    return true;
  }

  const Problem& problem_;
  const Settings& settings_;
  std::vector<StageDraft>& stages_;
  std::vector<std::vector<double>> uses_;       // of each stage: use() of its replicas
  std::vector<double> needed_, sent_per_flop_;  // of each stage: memory; bytes that a FLOP of its sequences sends
  std::vector<double> weights_, at_work_;       // bytes
  std::vector<double> in_time_;                 // seconds within which weights must come
};

}  // namespace

bool deal_replicas(const Problem& problem, const Settings& settings, std::vector<StageDraft>& stages) {
  return Dealer(problem, settings, stages).deal();
}

}  // namespace cleave::plan::stages
