// Heads of attention pairs, band by band: how gather and scatter walk tensors in which the heads of a sequence lie side
// by side, and messages in which they lie one after another.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_pair.hpp"
#include "blocks.hpp"
#include "cleave/base/shapes.hpp"
#include "cleave/kernels/matrix.hpp"
#include "cleave/kernels/parallel.hpp"

namespace cleave::server {

/// Heads of one sequence that a run of pairs has: side by side in a tensor, one after another in a message.
struct HeadRows {
  kernels::Rows rows;  ///< some rows of all of them
  std::int64_t heads = 0;
  std::int64_t element = 0;  ///< where the first one's first row begins in the message
};

/// Calls visit(HeadRows) until all rows of all heads of the pairs have passed, in any order, on any thread.
template <class Visit>
void for_head_rows(kernels::Parallel& parallel, const AttentionShape& shape, const PairRange& pairs, kernels::Rows all,
                   bool queries, const Visit& visit) {
  if (pairs.count() == 0) return;
  const std::int64_t of_pair = heads_of(shape, queries), of_sequence = shape.n_kv_head;
  const std::int64_t first = pairs.pair0 / of_sequence, sequences = (pairs.pair1 - 1) / of_sequence + 1 - first;
  const std::int64_t band = rows_of_band(std::min(of_sequence, pairs.count()) * of_pair * shape.head_dim);
  const std::int64_t bands = (shape.seq + band - 1) / band;
  parallel.for_chunks(sequences * bands, 1, [&](std::int64_t chunk, std::int64_t) {
    const std::int64_t sequence = first + chunk / bands, row = chunk % bands * band;
    const std::int64_t begin = std::max(pairs.pair0, sequence * of_sequence);
    const std::int64_t end = std::min(pairs.pair1, (sequence + 1) * of_sequence), heads = (end - begin) * of_pair;
    const kernels::Rows head = pair_head(shape, begin, all, queries, 0);
    visit(HeadRows{{head.row(row), std::min(band, shape.seq - row), heads * shape.head_dim, head.ld},
                   heads,
                   ((begin - pairs.pair0) * of_pair * shape.seq + row) * shape.head_dim});
  });
}

}  // namespace cleave::server
