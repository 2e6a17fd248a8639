// Cyclic partitioning: the local search of DTFM's scheduler.
//
// A cycle starts in the group with the largest gain, moves that group's candidate to the group where it gains most,
// goes on from there, and ends where it started, so that sizes are restored. A group's candidate is its unlocked device
// with the fastest link to a group mate; moving it to group g gains (mean hop cost to g) - (that fastest link): slow
// links are to lie inside groups, fast ones between them. Sums are kept up to date move by move.
#include <algorithm>
#include <limits>

#include "dtfm_search.hpp"

namespace cleave::rivals {

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr double kFar = std::numeric_limits<double>::infinity();
constexpr std::size_t kNone = static_cast<std::size_t>(-1);

struct Move {
  std::size_t device, from, to;
  double gain;        // of this move
  double close_gain;  // of moving the same device to the start of the cycle instead
};

class Cycles {
 public:
  Cycles(const DtfmObjective& objective, std::vector<std::size_t>& labels)
      : objective_(objective),
        labels_(labels),
        n_(labels.size()),
        groups_(objective.stages()),
        sums_(n_ * groups_, 0),
        nearest_(n_, kFar),
        sizes_(groups_, 0),
        locked_(n_, 0) {
    for (const std::size_t g : labels_) ++sizes_[g];
    for (std::size_t v = 0; v < n_; ++v) {
      for (std::size_t u = 0; u < n_; ++u) {
        if (u == v) continue;
        sums_[v * groups_ + labels_[u]] += objective_.hop_s(v, u);
        if (labels_[u] == labels_[v]) nearest_[v] = std::min(nearest_[v], objective_.hop_s(v, u));
      }
    }
  }

  void run() {
    std::vector<char> touched(groups_, 0);
    double sum = 0, best = 0;
    std::vector<std::size_t> best_labels = labels_;
    for (std::size_t cycle = 0; cycle < groups_; ++cycle) {
      const double gain = run_cycle(touched);
      if (gain == kNever) break;
      sum += gain;
      if (sum > best) {
        best = sum;
        best_labels = labels_;
      }
      if (std::all_of(touched.begin(), touched.end(), [](char t) { return t != 0; })) break;
    }
    labels_ = best_labels;
  }

 private:
  struct Candidate {
    std::size_t device = kNone, to = kNone;
    double gain = kNever;
  };

  [[nodiscard]] double gain_of(std::size_t v, std::size_t g) const {
    return sums_[v * groups_ + g] / static_cast<double>(sizes_[g]) - nearest_[v];
  }

  [[nodiscard]] std::size_t candidate_of(std::size_t g) const {
    std::size_t found = kNone;
    for (std::size_t v = 0; v < n_; ++v) {
      if (labels_[v] == g && !locked_[v] && (found == kNone || nearest_[v] < nearest_[found])) found = v;
    }
    return found;
  }

  [[nodiscard]] Candidate best_move_from(std::size_t g) const {
    Candidate candidate;
    candidate.device = candidate_of(g);
    if (candidate.device == kNone) return candidate;
    for (std::size_t to = 0; to < groups_; ++to) {
      if (to == g || sizes_[to] == 0) continue;
      const double gain = gain_of(candidate.device, to);
      if (gain > candidate.gain) {
        candidate.gain = gain;
        candidate.to = to;
      }
    }
    return candidate;
  }

  void move(std::size_t v, std::size_t to) {
    const std::size_t from = labels_[v];
    labels_[v] = to;
    --sizes_[from];
    ++sizes_[to];
    for (std::size_t u = 0; u < n_; ++u) {
      if (u == v) continue;
      const double hop_s = objective_.hop_s(u, v);
      sums_[u * groups_ + from] -= hop_s;
      sums_[u * groups_ + to] += hop_s;
      if (labels_[u] == to) nearest_[u] = std::min(nearest_[u], hop_s);
      if (labels_[u] == from && hop_s <= nearest_[u]) find_nearest(u);
    }
    find_nearest(v);
  }

  void find_nearest(std::size_t v) {
    nearest_[v] = kFar;
    for (std::size_t u = 0; u < n_; ++u) {
      if (u != v && labels_[u] == labels_[v]) nearest_[v] = std::min(nearest_[v], objective_.hop_s(v, u));
    }
  }

  // Carries out one cycle, kept up to its best prefix, and returns its gain; kNever when no device can start one.
  double run_cycle(std::vector<char>& touched) {
    std::size_t start = kNone;
    Candidate first;
    for (std::size_t g = 0; g < groups_; ++g) {
      const Candidate candidate = best_move_from(g);
      if (candidate.to != kNone && (start == kNone || candidate.gain > first.gain)) {
        start = g;
        first = candidate;
      }
    }
    if (start == kNone) return kNever;

    std::vector<Move> moves;
    std::size_t at = start;
    for (std::size_t count = 0; count < n_; ++count) {
      const Candidate candidate = count == 0 ? first : best_move_from(at);
      if (candidate.to == kNone) break;  // everyone here is locked: the prefixes so far are all there is
      moves.push_back({.device = candidate.device,
                       .from = at,
                       .to = candidate.to,
                       .gain = candidate.gain,
                       .close_gain = at == start ? 0 : gain_of(candidate.device, start)});
      move(candidate.device, candidate.to);
      locked_[candidate.device] = 1;
      touched[candidate.to] = 1;
      at = candidate.to;
      if (at == start) break;
    }

    // Best prefix: moves [0, i) as they were, and move i closing the cycle.
    double sum = 0, best = 0;
    std::size_t close = 0;
    for (std::size_t i = 1; i < moves.size(); ++i) {
      sum += moves[i - 1].gain;
      if (sum + moves[i].close_gain > best) {
        best = sum + moves[i].close_gain;
        close = i;
      }
    }
    for (std::size_t i = moves.size(); i-- > close;) move(moves[i].device, moves[i].from);
    if (close > 0) move(moves[close].device, start);
    return best;
  }

  const DtfmObjective& objective_;
  std::vector<std::size_t>& labels_;
  std::size_t n_, groups_;
  std::vector<double> sums_;     // [device][group]: hop costs to the group's devices
  std::vector<double> nearest_;  // fastest hop to a mate
  std::vector<std::size_t> sizes_;
  std::vector<char> locked_;
};

}  // namespace

void improve_by_cycles(const DtfmObjective& objective, std::vector<std::size_t>& labels) {
  Cycles(objective, labels).run();
}

}  // namespace cleave::rivals
