// One case per errand.
#include "stage_device.hpp"

#include <algorithm>

#include "cleave/base/byte_cursor.hpp"

namespace cleave::device {

namespace {

using comm::StageErrand;
using pieces::UnitRange;

constexpr std::int64_t kMostSlices = std::int64_t{1} << 16;

// Pieces of a stage, and slices of them.
struct Holding {
  std::int64_t first = 0, end = 0;
  std::vector<UnitRange> slices;
};

std::vector<UnitRange> read_slices(ByteReader& from) {
  const auto count = from.value<std::int64_t>();
  if (count < 0 || count > kMostSlices) return {};
  return from.values<UnitRange>(static_cast<std::size_t>(count));
}

}  // namespace

StageDevice::Status StageDevice::hold(const comm::StageTask& task, std::span<const std::byte> payload) {
  if (payload.empty()) return Status::ok;  // memory alone
  ByteReader from(payload);
  Holding holding{.first = from.value<std::int64_t>(), .end = from.value<std::int64_t>(), .slices = {}};
  if (task.owner >= 0) holding.slices = read_slices(from);
  const std::vector<float> weights = from.rest<float>();
  if (!from.ok()) return Status::malformed;
  return task.owner < 0
             ? worker_.hold_stage(task.stage, holding.first, holding.end, weights)
             : worker_.hold_slices(task.owner, task.stage, holding.first, holding.end, holding.slices, weights);
}

StageDevice::Status StageDevice::pass(const comm::StageTask& task, std::span<const std::byte> payload,
                                      std::span<std::byte> to) {
  ByteReader from(payload);
  const std::vector<float> x = from.rest<float>();
  if (!from.ok() || (!to.empty() && to.size() != payload.size())) return Status::malformed;
  std::vector<float> y(to.size() / sizeof(float));
  const Status status = worker_.forward({task.stage, task.sequence, task.row, task.rows}, x, y);
  ByteWriter(to).put(std::span<const float>(y));
  return status;
}

// The task has X and the targets; the result each row's sum and loss, then dX, each row's maximum, and norms.
StageDevice::Status StageDevice::pass_head(const comm::StageTask& task, std::span<const std::byte> payload,
                                           std::span<std::byte> to) {
  const auto rows = static_cast<std::size_t>(task.rows);
  const auto width = static_cast<std::size_t>(table_.piece(table_.size() - 1).width);
  if (rows > static_cast<std::size_t>(table_.graph().seq)) return Status::malformed;
  ByteReader from(payload);
  const auto x = from.values<float>(rows * width);
  const auto targets = from.rest<std::int32_t>();
  const std::size_t known = rows * (2 * sizeof(double) + (width + 1) * sizeof(float));
  if (!from.ok() || (!to.empty() && (to.size() < known || (to.size() - known) % sizeof(float) != 0)))
    return Status::malformed;
  std::vector<double> sum(to.empty() ? 0 : rows), loss(sum.size());
  std::vector<float> dx(sum.size() * width), top(sum.size()),
      norms(to.empty() ? 0 : (to.size() - known) / sizeof(float));
  const Status status =
      worker_.head({task.stage, task.sequence, task.row, task.rows}, x, targets, {dx, top, sum, loss, norms});
  ByteWriter write(to);
  for (const auto* values : {&sum, &loss}) write.put(std::span<const double>(*values));
  for (const auto* values : {&dx, &top, &norms}) write.put(std::span<const float>(*values));
  return status;
}

// With the first rows of a sequence come the norms; before them dX, where it is wanted.
StageDevice::Status StageDevice::go_back(const comm::StageTask& task, std::span<const std::byte> payload,
                                         std::span<std::byte> to) {
  ByteReader from(payload);
  const auto dy = from.rest<float>();
  if (!from.ok() || to.size() % sizeof(float) != 0) return Status::malformed;
  const std::size_t all = to.size() / sizeof(float);
  const std::size_t with_norms = task.row == 0 ? static_cast<std::size_t>(worker_.norms_of(task.stage)) : 0;
  const std::size_t of_norms = std::min(all, with_norms);
  std::vector<float> dx(all - of_norms), norms(of_norms);
  const Status status = worker_.backward({task.stage, task.sequence, task.row, task.rows}, dy, dx, norms);
  ByteWriter write(to);
  write.put(std::span<const float>(dx));
  write.put(std::span<const float>(norms));
  return status;
}

// Nothing: the sequence was run here. Otherwise X and dY, or at the head each row's sum, X, its maximum, its target.
StageDevice::Status StageDevice::add(const comm::StageTask& task, std::span<const std::byte> payload) {
  const bool away = task.errand == StageErrand::take_away;
  if (payload.empty()) return worker_.add(task.owner, task.sequence, nullptr, away);
  const auto seq = static_cast<std::size_t>(table_.graph().seq);
  const auto width = static_cast<std::size_t>(table_.piece(table_.size() - 1).width);
  ByteReader from(payload);
  pieces::StageWorker::Operands operands;
  std::vector<double> sum;
  std::vector<float> x, dy, top;
  std::vector<std::int32_t> targets;
  if (payload.size() == 2 * seq * width * sizeof(float)) {
    x = from.values<float>(seq * width);
    dy = from.values<float>(seq * width);
  } else {
    sum = from.values<double>(seq);
    x = from.values<float>(seq * width);
    top = from.values<float>(seq);
    targets = from.values<std::int32_t>(seq);
  }
  if (!from.done()) return Status::malformed;
  operands = {.x = x, .dy = dy, .top = top, .sum = sum, .targets = targets};
  return worker_.add(task.owner, task.sequence, &operands, away);
}

StageDevice::Status StageDevice::send_sums(const comm::StageTask& task, std::span<const std::byte> payload,
                                           std::span<std::byte> to) {
  ByteReader from(payload);
  const bool partial = from.value<std::int64_t>() != 0;
  const std::vector<UnitRange> slices = read_slices(from);
  const std::size_t element = partial ? sizeof(std::int64_t) : sizeof(float);
  if (!from.done() || to.size() % element != 0) return Status::malformed;
  if (partial) {
    std::vector<std::int64_t> sums(to.size() / element);
    const Status status = worker_.partial_sums(task.owner, slices, sums);
    ByteWriter(to).put(std::span<const std::int64_t>(sums));
    return status;
  }
  std::vector<float> gradient(to.size() / element);
  const Status status = worker_.gradient(task.owner, slices, gradient);
  ByteWriter(to).put(std::span<const float>(gradient));
  return status;
}

StageDevice::Status StageDevice::carry_out(const comm::StageTask& task, std::span<const std::byte> payload,
                                           std::span<std::byte> to) {
  switch (task.errand) {
    case StageErrand::begin: worker_.clear(); return Status::ok;
    case StageErrand::hold: return hold(task, payload);
    case StageErrand::forward: {
      const bool head = worker_.is_head(task.stage);
      return head ? pass_head(task, payload, to) : pass(task, payload, to);
    }
    case StageErrand::remake: {
      ByteReader from(payload);
      const auto x = from.rest<float>();
      if (!from.ok() || !to.empty()) return Status::malformed;
      return worker_.remake(task.stage, task.sequence, x);
    }
    case StageErrand::backward: return go_back(task, payload, to);
    case StageErrand::sum:
    case StageErrand::take_away: return add(task, payload);
    case StageErrand::send_sums: return send_sums(task, payload, to);
    case StageErrand::none: break;
  }
  return Status::malformed;
}

std::optional<std::variant<comm::ResultDraft, comm::Reason>> StageDevice::execute(const comm::TaskView& task) {
  const comm::StageTask& asked = task.header.stage_task;
  switch (asked.errand) {
    case StageErrand::begin:
      added_.clear();
      (void)carry_out(asked, {}, {});
      return std::nullopt;
    case StageErrand::take_away:  // under the number of what is to be taken away, if that was ever added
      if (added_.erase(task.header.tasklet) > 0) (void)carry_out(asked, task.operands[0], {});
      return std::nullopt;
    default: break;
  }
  if (task.header.tasklet <= last_) return std::nullopt;
  last_ = task.header.tasklet;
  if (asked.errand == StageErrand::hold) {
    (void)carry_out(asked, task.operands[0], {});
    return std::nullopt;
  }
  comm::ResultDraft result = comm::begin_result(comm::result_header(task.header));
  switch (carry_out(asked, task.operands[0], result.outputs[0])) {
    case Status::ok: break;
    case Status::absent: return comm::Reason::columns;
    case Status::malformed: return comm::Reason::malformed;
    case Status::diverged: return comm::Reason::non_finite;
  }
  if (asked.errand == StageErrand::sum) added_.insert(task.header.tasklet);
  if (worker_.memory() > memory_) return comm::Reason::memory;
  return result;
}

}  // namespace cleave::device
