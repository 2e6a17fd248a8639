// What a StageWorker holds: weights, replicas, sequences on their way, owners.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cleave/kernels/token_sum_matrix.hpp"
#include "cleave/pieces/stage_worker.hpp"

namespace cleave::pieces {

/// Rows that are worked on at a time where a whole sequence is there.
inline constexpr std::int64_t kRowsAtOnce = 256;

/// Parameters, each as the whole tensor of which some lines are there.
struct StageWorker::Weights {
  std::map<TensorId, KeptVector<float>> tensors;
  Parameters in_place{};   // instead
  std::int64_t bytes = 0;  // that were sent, or would have been

  Weights(const model::StepGraph& graph, const NeededParameters& needed, std::span<const std::byte> values);
  Weights(const model::StepGraph& graph, const NeededParameters& needed, Parameters places);
  [[nodiscard]] Parameters parameters(const model::StepGraph& graph) const;
};

/// A stage.
struct StageWorker::Replica {
  std::int64_t first, end;
  std::unique_ptr<Weights> weights;
  std::vector<std::unique_ptr<ChunkRun>> runs;                 // of each piece
  std::vector<std::vector<Instruction>> forward, keys_values;  // of each piece; of a whole head neither
  bool keeps;
  bool stateless = true;  // in the forward pass: no piece has attention, so chunks do not need those before them
  bool part = false;      // of the head
  KeptVector<std::int16_t> column_exponents;  // of a part

  Replica(PieceTable& table, kernels::Parallel& parallel, ChunkMemory& memory, std::int64_t from, std::int64_t to,
          std::unique_ptr<Weights> of, bool keeps_values);
};

/// A sequence at a stage, one way.
struct StageWorker::Visit {
  std::vector<SequenceState> states;  // of each piece
  std::int64_t next = 0;              // the row at which the next chunk begins, or in the backward pass ends
  std::vector<KeptVector<float>> x;   // in the backward pass: what each piece reads, all rows
  std::vector<KeptValues> kept;       // instead, of each piece, where the replica keeps values
  std::vector<std::vector<Instruction>> back;
  std::vector<std::int32_t> owners;  // whose operands are kept on the way
};

/// A sequence that is through, of which values were kept. Products that wait (Owner::late) may share them.
struct StageWorker::Passed {
  std::shared_ptr<const std::vector<KeptValues>> kept;  // of each piece
  std::vector<std::int32_t> owners;                     // that are to sum over it yet
};

/// Slices of a stage's gradient.
struct StageWorker::Owner {
  std::int32_t stage = 0;
  std::int64_t first = 0, end = 0;
  OwnerSteps steps;
  std::unique_ptr<Weights> weights;  // none: the replica's
  std::vector<std::unique_ptr<ChunkRun>> runs;
  std::vector<kernels::TokenSumMatrix> sums;             // of each region
  std::vector<std::vector<kernels::TokenProduct>> late;  // of each region: to be added yet
  std::vector<std::shared_ptr<const std::vector<KeptValues>>> late_operands;
};

}  // namespace cleave::pieces
