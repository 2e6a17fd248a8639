// Ring all-reduce and sharded exchange.
#include "collective.hpp"

#include <algorithm>
#include <cmath>

#include "cleave/plan/cost.hpp"

namespace cleave::rivals {

namespace {

CollectiveCost empty_exchange(std::size_t members) {
  const std::vector<double> zero(members, 0.0);
  return {.time_s = 0, .up_s = zero, .down_s = zero, .bytes_up = zero, .bytes_down = zero};
}

void count(CollectiveCost& exchange, std::size_t from, std::size_t to, const Hop& hop, double payload, double times) {
  const double bytes = payload + static_cast<double>(plan::kMessageHeader.value());
  exchange.up_s[from] += times * hop.send_s;
  exchange.down_s[to] += times * hop.receive_s;
  exchange.bytes_up[from] += times * bytes;
  exchange.bytes_down[to] += times * bytes;
}

}  // namespace

CollectiveCost ring_all_reduce(const Network& network, std::span<const std::size_t> members, double bytes) {
  const std::size_t g = members.size();
  CollectiveCost exchange = empty_exchange(g);
  if (g < 2) return exchange;
  const double chunk = bytes / static_cast<double>(g), steps = 2.0 * static_cast<double>(g - 1);
  double slowest_s = 0;
  for (std::size_t i = 0; i < g; ++i) {
    const std::size_t next = (i + 1) % g;
    const Hop hop = network.hop(members[i], members[next], chunk);
    slowest_s = std::max(slowest_s, hop.time_s());
    count(exchange, i, next, hop, chunk, steps);
  }
  exchange.time_s = steps * slowest_s;
  return exchange;
}

CollectiveCost sharded_exchange(const Network& network, std::span<const std::size_t> members, double bytes) {
  const std::size_t g = members.size();
  CollectiveCost exchange = empty_exchange(g);
  if (g < 2) return exchange;
  const double shard = bytes / static_cast<double>(g);
  double latency_s = 0, longest_s = 0;
  for (std::size_t i = 0; i < g; ++i) {
    for (std::size_t j = 0; j < g; ++j) {
      if (i == j) continue;
      const Hop hop = network.hop(members[i], members[j], shard);
      latency_s = std::max(latency_s, hop.latency_s);
      count(exchange, i, j, hop, shard, 2.0);
    }
  }
  // Links are busy for both phases alike; a phase lasts as long as its busiest link and one latency.
  for (std::size_t i = 0; i < g; ++i) longest_s = std::max({longest_s, exchange.up_s[i], exchange.down_s[i]});
  exchange.time_s = longest_s + 2.0 * latency_s;
  return exchange;
}

CollectiveCost exchange_between(const Network& network, std::span<const std::size_t> first,
                                std::span<const std::size_t> last, double bytes) {
  const std::size_t a = first.size(), b = last.size();
  CollectiveCost exchange = empty_exchange(a + b);
  double latency_s = 0, longest_s = 0;
  for (std::size_t i = 0; i < a; ++i) {
    for (std::size_t j = i * b / a; j < b && j * a < (i + 1) * b; ++j) {
      // In parts of 1/(a b): i has [i b, (i+1) b), j has [j a, (j+1) a).
      const std::size_t common = std::min((i + 1) * b, (j + 1) * a) - std::max(i * b, j * a);
      const double part = bytes * static_cast<double>(common) / static_cast<double>(a * b);
      const Hop there = network.hop(first[i], last[j], part), back = network.hop(last[j], first[i], part);
      latency_s = std::max({latency_s, there.latency_s, back.latency_s});
      count(exchange, i, a + j, there, part, 1);
      count(exchange, a + j, i, back, part, 1);
    }
  }
  for (std::size_t i = 0; i < a + b; ++i) longest_s = std::max({longest_s, exchange.up_s[i], exchange.down_s[i]});
  exchange.time_s = longest_s + latency_s;
  return exchange;
}

CollectiveCost scaled(CollectiveCost exchange, double times) {
  exchange.time_s *= times;
  for (auto* part : {&exchange.up_s, &exchange.down_s, &exchange.bytes_up, &exchange.bytes_down}) {
    for (double& value : *part) value *= times;
  }
  return exchange;
}

double charge_exchange_between(const Network& network, std::span<const std::size_t> first,
                               std::span<const std::size_t> last, double bytes, std::span<sched::Usage> usage) {
  const CollectiveCost exchange = exchange_between(network, first, last, bytes);
  std::vector<std::size_t> members(first.begin(), first.end());
  members.insert(members.end(), last.begin(), last.end());
  charge(exchange, members, usage);
  return exchange.time_s;
}

void charge(const CollectiveCost& exchange, std::span<const std::size_t> members, std::span<sched::Usage> usage) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    sched::Usage& used = usage[members[i]];
    used.up += Seconds(exchange.up_s[i]);
    used.down += Seconds(exchange.down_s[i]);
    used.bytes_up += Bytes(std::llround(exchange.bytes_up[i]));
    used.bytes_down += Bytes(std::llround(exchange.bytes_down[i]));
  }
}

}  // namespace cleave::rivals
