// StageDevice: tasks of a step in stages, as one emulated device carries them out: payloads to numbers and back.
//
// docs/wire_format.md says what payloads hold. Tasks are executed by one thread, in the order in which they came, but
// that others may overtake visits that are recomputed. A task whose number is not above those before it, of the visits
// that are recomputed or of all others, came twice, and is passed over.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <variant>
#include <vector>

#include "cleave/base/byte_cursor.hpp"
#include "cleave/base/units.hpp"
#include "cleave/comm/message.hpp"
#include "cleave/pieces/stage_worker.hpp"

namespace cleave::device {

class StageDevice {
 public:
  /// `table`, `parallel` must outlive it. `memory`: of the emulated device.
  StageDevice(pieces::PieceTable& table, kernels::Parallel& parallel, Bytes memory)
      : table_(table), worker_(table, parallel), memory_(memory) {}

  /// The answer, filled but not sealed, or why there is none; nothing for tasks that are not answered. `frame`: what
  /// `task` is a view of; it is kept where weights are read in its sender's memory.
  [[nodiscard]] std::optional<std::variant<comm::ResultDraft, comm::Reason>> execute(const comm::TaskView& task,
                                                                                     comm::Frame& frame);
  /// Gives up what an owner of slices holds.
  void drop_slices(std::int32_t owner) { worker_.drop_slices(owner); }
  /// Gives up the weights of a stage, and what it has of sequences there.
  void drop_stage(std::int32_t stage) { worker_.drop_stage(stage); }

 private:
  using Status = pieces::StageWorker::Status;
  using Replay = pieces::StageWorker::Replay;
  // Pieces of a stage, and slices of them.
  struct Holding {
    std::int64_t first = 0, end = 0;
    std::vector<pieces::UnitRange> slices;
  };

  [[nodiscard]] Status hold(const comm::StageTask& task, std::span<const std::byte> payload,
                            std::span<const std::byte> reach);
  [[nodiscard]] static bool brings_places(const comm::StageTask& task, std::span<const std::byte> payload);
  [[nodiscard]] Status hold_in_place(std::int32_t stage, const Holding& holding, ByteReader& from,
                                     std::span<const std::byte> reach, Replay replay);
  // `goes_back`: the sequence will come back here.
  [[nodiscard]] Status pass(const comm::StageTask& task, std::span<const std::byte> payload, std::span<std::byte> to,
                            bool goes_back);
  [[nodiscard]] Status pass_head(const comm::StageTask& task, std::span<const std::byte> payload,
                                 std::span<std::byte> to, std::int32_t for_owner);
  [[nodiscard]] Status pass_part(const comm::StageTask& task, std::span<const std::byte> payload,
                                 std::span<std::byte> to);
  [[nodiscard]] Status part_back(const comm::StageTask& task, std::span<const std::byte> payload,
                                 std::span<std::byte> to);
  [[nodiscard]] Status go_back(const comm::StageTask& task, std::span<const std::byte> payload,
                               std::span<std::byte> to);
  [[nodiscard]] Status make_again(const comm::StageTask& task, std::span<const std::byte> payload,
                                  std::span<std::byte> to);
  [[nodiscard]] Status add(const comm::StageTask& task, std::span<const std::byte> payload);
  [[nodiscard]] Status send_sums(const comm::StageTask& task, std::span<const std::byte> payload,
                                 comm::ResultDraft& result, bool digested);
  // `reach`: memory that places in the payload are in.
  [[nodiscard]] Status carry_out(const comm::StageTask& task, std::span<const std::byte> payload,
                                 std::span<const std::byte> reach, comm::ResultDraft& result, bool digested = false);

  // Rows of boundaries and of gradients, in the wire type on their way.
  [[nodiscard]] DType wire() const { return table_.graph().wire; }
  [[nodiscard]] std::size_t element() const { return static_cast<std::size_t>(size_of(wire())); }
  // Of a row of the residual stream, or of its gradient.
  [[nodiscard]] DType boundary() const { return table_.graph().boundary; }
  [[nodiscard]] std::int64_t width() const { return table_.piece(table_.head()).width; }
  [[nodiscard]] std::size_t row() const { return static_cast<std::size_t>(row_bytes(boundary(), width())); }

  pieces::PieceTable& table_;
  pieces::StageWorker worker_;
  Bytes memory_;
  TaskletId last_, last_again_;        // of visits that are recomputed
  std::set<TaskletId> added_;          // to sums, in this step
  std::vector<comm::Frame> in_reach_;  // messages that brought places, which keep what they reach
};

}  // namespace cleave::device
