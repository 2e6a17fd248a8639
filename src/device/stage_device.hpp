// StageDevice: tasks of a step in stages, as one emulated device carries them out: payloads to numbers and back.
//
// docs/wire_format.md says what payloads hold. Tasks are executed in the order in which they came, by one thread; a
// task whose number is not above those before it came twice, and is passed over.
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

  /// The answer, filled but not sealed, or why there is none; nothing for tasks that are not answered.
  [[nodiscard]] std::optional<std::variant<comm::ResultDraft, comm::Reason>> execute(const comm::TaskView& task);
  /// Gives up what an owner of slices holds.
  void drop_slices(std::int32_t owner) { worker_.drop_slices(owner); }

 private:
  using Status = pieces::StageWorker::Status;

  [[nodiscard]] Status hold(const comm::StageTask& task, std::span<const std::byte> payload);
  [[nodiscard]] Status pass(const comm::StageTask& task, std::span<const std::byte> payload, std::span<std::byte> to);
  [[nodiscard]] Status pass_head(const comm::StageTask& task, std::span<const std::byte> payload,
                                 std::span<std::byte> to, bool for_sums);
  [[nodiscard]] Status go_back(const comm::StageTask& task, std::span<const std::byte> payload,
                               std::span<std::byte> to);
  [[nodiscard]] Status make_again(const comm::StageTask& task, std::span<const std::byte> payload,
                                  std::span<std::byte> to);
  [[nodiscard]] Status add(const comm::StageTask& task, std::span<const std::byte> payload);
  [[nodiscard]] Status send_sums(const comm::StageTask& task, std::span<const std::byte> payload,
                                 comm::ResultDraft& result, bool digested);
  [[nodiscard]] Status carry_out(const comm::StageTask& task, std::span<const std::byte> payload,
                                 comm::ResultDraft& result, bool digested = false);

  // Rows of boundaries and of gradients, in the wire type on their way.
  [[nodiscard]] DType wire() const { return table_.graph().wire; }
  [[nodiscard]] std::size_t element() const { return static_cast<std::size_t>(size_of(wire())); }
  [[nodiscard]] std::vector<float> widened_rows(std::span<const std::byte> bytes) const;
  [[nodiscard]] std::vector<float> read_rows(ByteReader& from, std::size_t elements) const;
  void put_rows(std::span<const float> rows, ByteWriter& to) const;

  pieces::PieceTable& table_;
  pieces::StageWorker worker_;
  Bytes memory_;
  TaskletId last_;
  std::set<TaskletId> added_;  // to sums, in this step
};

}  // namespace cleave::device
