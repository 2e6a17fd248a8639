// Hash of a plan::Work, for maps from a shape of operation to what is known of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cleave/plan/plan.hpp"

namespace cleave::sched {

struct WorkHash {
  std::size_t operator()(const plan::Work& w) const noexcept {
    std::size_t h = static_cast<std::size_t>(w.kind) * 31 + static_cast<std::size_t>(w.wire);
    for (const std::int64_t v : {w.gemm.m, w.gemm.n, w.gemm.k, w.attention.batch, w.attention.seq, w.attention.n_head,
                                 w.attention.n_kv_head, w.attention.head_dim, w.instances}) {
      h = (h * 1000003) ^ std::hash<std::int64_t>{}(v);
    }
    return h;
  }
};

/// Of several works; with SameWorks, for maps that are searched without a vector.
struct WorksHash {
  using is_transparent = void;
  std::size_t operator()(std::span<const plan::Work> works) const noexcept {
    std::size_t h = works.size();
    for (const plan::Work& work : works) h = (h * 1000003) ^ WorkHash {}(work);
    return h;
  }
};
struct SameWorks {
  using is_transparent = void;
  bool operator()(std::span<const plan::Work> a, std::span<const plan::Work> b) const {
    return std::ranges::equal(a, b);
  }
};

}  // namespace cleave::sched
