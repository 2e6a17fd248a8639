// Row groups: the batch cut into groups of sequences that follow each other through the forward pass, and through the
// input gradients of the backward pass.
//
// Both are chains, in which results leave the devices only when operands have come. Cut into groups, one group's
// results leave while the next one's operands arrive, and groups are under way in different layers at once. The price:
// every group is sent the weights.
//
// An element's value does not depend on which other rows are computed with it (docs/numerics.md), and the loss, weight
// gradients and other sums over rows stay whole, so a step gives the same bits for any number of groups.
#pragma once

#include <cstdint>

#include "cleave/model/graph.hpp"

namespace cleave::model {

/// The same step with `groups` row groups (at most one a sequence), in a legal serial order. Group g has the sequences
/// [g B / G, (g + 1) B / G). Requires: groups >= 1.
[[nodiscard]] StepGraph with_row_groups(StepGraph graph, std::int64_t groups);

}  // namespace cleave::model
