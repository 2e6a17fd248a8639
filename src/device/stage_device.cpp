// One case per errand.
#include "stage_device.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "cleave/base/byte_cursor.hpp"
#include "cleave/kernels/wire.hpp"

namespace cleave::device {

namespace {

using comm::StageErrand;
using pieces::UnitRange;

constexpr std::int64_t kMostSlices = std::int64_t{1} << 16;
// Added to the number of a sequence whose visit is recomputed: the device may have one of its own with it.
constexpr std::int64_t kMadeAgain = std::int64_t{1} << 40;

std::vector<UnitRange> read_slices(ByteReader& from) {
  const auto count = from.value<std::int64_t>();
  if (count < 0 || count > kMostSlices) return {};
  return from.values<UnitRange>(static_cast<std::size_t>(count));
}

// Elements of whole rows in so many bytes.
std::size_t elements_in(DType type, std::size_t bytes, std::int64_t columns) {
  return bytes / static_cast<std::size_t>(row_bytes(type, columns)) * static_cast<std::size_t>(columns);
}

// Rows of `columns` elements that came, in fp32: where they are in the message, or widened. Payloads begin on a
// boundary of comm::kAlignment, and what is wider comes first. Requires: the bytes are whole rows.
class RowsIn {
 public:
  RowsIn(DType type, std::span<const std::byte> bytes, std::int64_t columns)
      : widened_(type == DType::f32 ? 0 : elements_in(type, bytes.size(), columns)),
        rows_(widened_.empty() ? std::span(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float))
                               : std::span<const float>(widened_)) {
    if (!widened_.empty())
      kernels::from_wire(type, bytes.data(), {widened_.data(), std::ssize(widened_) / columns, columns});
  }
  operator std::span<const float>() const { return rows_; }  // NOLINT(google-explicit-constructor)

 private:
  std::vector<float> widened_;
  std::span<const float> rows_;
};

// Rows that go, in so many bytes: written where they are in the result, or rounded to their type by send(). Requires:
// the bytes are whole rows.
class RowsOut {
 public:
  RowsOut(DType type, ByteWriter& to, std::size_t bytes, std::int64_t columns)
      : type_(type),
        columns_(columns),
        place_(to.rest()),
        own_(type == DType::f32 ? 0 : elements_in(type, bytes, columns)) {
    if (type == DType::f32) {
      rows_ = to.room<float>(bytes / sizeof(float));
    } else {
      rows_ = own_;
      to.skip(bytes);
    }
  }
  [[nodiscard]] std::span<float> rows() const { return rows_; }
  void send() const {
    if (!own_.empty()) kernels::to_wire(type_, {own_.data(), std::ssize(own_) / columns_, columns_}, place_.data());
  }

 private:
  DType type_;
  std::int64_t columns_;
  std::span<std::byte> place_;
  std::vector<float> own_;
  std::span<float> rows_;
};

}  // namespace

StageDevice::Status StageDevice::hold(const comm::StageTask& task, std::span<const std::byte> payload,
                                      std::span<const std::byte> reach) {
  if (payload.empty()) return Status::ok;  // memory alone
  ByteReader from(payload);
  Holding holding{.first = from.value<std::int64_t>(), .end = from.value<std::int64_t>(), .slices = {}};
  if (task.owner >= 0) holding.slices = read_slices(from);
  const std::int64_t how = task.owner < 0 ? from.value<std::int64_t>() : 0;
  if (!from.ok()) return Status::malformed;
  const auto replay = (how & comm::kKeepsValues) != 0 ? Replay::kept : Replay::recomputed;
  if ((how & comm::kSumsLate) != 0) worker_.sum_late();
  if ((how & comm::kWeightsInPlace) != 0) return hold_in_place(task.stage, holding, from, reach, replay);
  const std::span<const std::byte> weights = from.left();
  return task.owner < 0
             ? worker_.hold_stage(task.stage, holding.first, holding.end, weights, replay)
             : worker_.hold_slices(task.owner, task.stage, holding.first, holding.end, holding.slices, weights);
}

// Whether weights are read in the sender's memory, which stays there as long as the message does.
bool StageDevice::brings_places(const comm::StageTask& task, std::span<const std::byte> payload) {
  if (task.owner >= 0 || payload.empty()) return false;
  ByteReader from(payload);
  (void)from.bytes(2 * sizeof(std::int64_t));
  const auto how = from.value<std::int64_t>();
  return from.ok() && (how & comm::kWeightsInPlace) != 0;
}

// Places of the parameters in order of their ids, then those that have none: they are sent. Each is whole, without gaps
// between its rows.
StageDevice::Status StageDevice::hold_in_place(std::int32_t stage, const Holding& holding, ByteReader& from,
                                               std::span<const std::byte> reach, Replay replay) {
  if (holding.first < 0 || holding.end <= holding.first || holding.end > table_.size()) return Status::malformed;
  const model::StepGraph& graph = table_.graph();
  const pieces::NeededParameters needed = pieces::parameters_of_stage(table_, holding.first, holding.end);
  const auto places = from.view<comm::OperandPlace>(needed.size());
  if (!from.ok()) return Status::malformed;
  std::map<TensorId, kernels::ConstRows> rows;
  std::map<TensorId, KeptVector<float>> sent;
  std::size_t next = 0;
  for (const auto& [id, part] : needed) {
    const comm::OperandPlace& place = places[next++];
    const model::TensorSpec& spec = graph.tensor(id);
    if (place.offset == -1) {
      const auto values = from.view<float>(static_cast<std::size_t>(spec.elements()));
      if (!from.ok()) return Status::malformed;
      const KeptVector<float>& own = sent[id] = KeptVector<float>(values.begin(), values.end());
      rows.emplace(id, kernels::ConstRows(own.data(), spec.rows, spec.cols));
      continue;
    }
    const std::int64_t bytes = spec.elements() * static_cast<std::int64_t>(sizeof(float));
    const auto size = static_cast<std::int64_t>(reach.size());
    if (place.offset < 0 || place.offset % static_cast<std::int64_t>(alignof(float)) != 0 || bytes > size ||
        place.offset > size - bytes || place.ld != spec.cols)
      return Status::malformed;
    const auto* const first = reinterpret_cast<const float*>(reach.data() + place.offset);
    rows.emplace(id, kernels::ConstRows(first, spec.rows, spec.cols));
  }
  if (!from.done()) return Status::malformed;
  // Elements of `sent` stay where they are when the map is moved.
  const auto held = std::make_shared<const std::pair<decltype(rows), decltype(sent)>>(std::move(rows), std::move(sent));
  return worker_.hold_stage(
      stage, holding.first, holding.end, [held](TensorId id) { return held->first.at(id); }, replay);
}

StageDevice::Status StageDevice::pass(const comm::StageTask& task, std::span<const std::byte> payload,
                                      std::span<std::byte> to, bool goes_back) {
  if (payload.size() % row() != 0 || (!to.empty() && to.size() != payload.size())) return Status::malformed;
  ByteWriter write(to);
  const RowsOut y(boundary(), write, to.size(), width());
  const Status status = worker_.forward({task.stage, task.sequence, task.row, task.rows},
                                        RowsIn(boundary(), payload, width()), y.rows(), goes_back);
  if (status == Status::ok) y.send();
  return status;
}

// The task has X and the targets; the result each row's sum and loss, then dX, each row's maximum, and norms.
StageDevice::Status StageDevice::pass_head(const comm::StageTask& task, std::span<const std::byte> payload,
                                           std::span<std::byte> to, std::int32_t for_owner) {
  const auto rows = static_cast<std::size_t>(task.rows);
  if (rows > static_cast<std::size_t>(table_.graph().seq)) return Status::malformed;
  ByteReader from(payload);
  const std::span<const std::byte> x = from.bytes(rows * row());
  const auto targets = from.rest<std::int32_t>();
  const std::size_t known = rows * (2 * sizeof(double) + row() + sizeof(float));
  if (!from.ok() || (!to.empty() && (to.size() < known || (to.size() - known) % sizeof(float) != 0)))
    return Status::malformed;
  const std::size_t returned = to.empty() ? 0 : rows;
  ByteWriter write(to);
  std::vector<double> sum(returned), loss(returned);
  std::vector<float> top(returned), norms(to.empty() ? 0 : (to.size() - known) / sizeof(float));
  write.skip(2 * returned * sizeof(double));
  const RowsOut dx(boundary(), write, returned * row(), width());
  const Status status = worker_.head({task.stage, task.sequence, task.row, task.rows}, RowsIn(boundary(), x, width()),
                                     targets, {dx.rows(), top, sum, loss, norms}, for_owner);
  if (status != Status::ok) return status;
  ByteWriter first(to);
  for (const auto* values : {&sum, &loss}) first.put(std::span<const double>(*values));
  dx.send();
  for (const auto* values : {&top, &norms}) write.put(std::span<const float>(*values));
  return status;
}

// The task has X and the targets; the result each row's maxima, its sums, one a vocabulary block, and then the logits
// of the targets.
StageDevice::Status StageDevice::pass_part(const comm::StageTask& task, std::span<const std::byte> payload,
                                           std::span<std::byte> to) {
  const auto rows = static_cast<std::size_t>(task.rows);
  if (rows > static_cast<std::size_t>(table_.graph().seq) || to.size() % sizeof(float) != 0) return Status::malformed;
  ByteReader from(payload);
  const std::span<const std::byte> x = from.bytes(rows * row());
  const auto targets = from.rest<std::int32_t>();
  if (!from.ok()) return Status::malformed;
  const std::size_t all = to.size() / sizeof(float), sums = all < rows ? 0 : (all - rows) / 2;
  if (to.size() != (to.empty() ? 0 : 2 * sums + rows) * sizeof(float)) return Status::malformed;
  ByteWriter write(to);
  const std::span<float> tops = write.room<float>(sums), of_blocks = write.room<float>(sums);
  return worker_.part({task.stage, task.sequence, task.row, task.rows}, RowsIn(boundary(), x, width()), targets,
                      {tops, of_blocks, write.room<float>(to.empty() ? 0 : rows)});
}

// The task has each row's sum over the whole vocabulary, its maximum and its target.
StageDevice::Status StageDevice::part_back(const comm::StageTask& task, std::span<const std::byte> payload,
                                           std::span<std::byte> to) {
  const auto rows = static_cast<std::size_t>(task.rows);
  if (rows > static_cast<std::size_t>(table_.graph().seq)) return Status::malformed;
  ByteReader from(payload);
  const auto sum = from.values<double>(rows);
  const auto top = from.values<float>(rows);
  const auto targets = from.values<std::int32_t>(rows);
  if (!from.done()) return Status::malformed;
  return worker_.part_backward({task.stage, task.sequence, task.row, task.rows}, {top, sum, targets}, to);
}

// With the first rows of a sequence come the norms; before them dX, where it is wanted.
StageDevice::Status StageDevice::go_back(const comm::StageTask& task, std::span<const std::byte> payload,
                                         std::span<std::byte> to) {
  const std::size_t with_norms = task.row == 0 ? static_cast<std::size_t>(worker_.norms_of(task.stage)) : 0;
  const std::size_t of_norms = std::min(to.size(), with_norms * sizeof(float)), of_dx = to.size() - of_norms;
  if (payload.size() % row() != 0 || of_norms % sizeof(float) != 0 || of_dx % row() != 0) return Status::malformed;
  ByteWriter write(to);
  const RowsOut dx(boundary(), write, of_dx, width());
  std::vector<float> norms(of_norms / sizeof(float));
  const Status status = worker_.backward({task.stage, task.sequence, task.row, task.rows},
                                         RowsIn(boundary(), payload, width()), dx.rows(), norms, task.owner);
  if (status != Status::ok) return status;
  dx.send();
  write.put(std::span<const float>(norms));
  return status;
}

// A whole visit, answer after answer as they would have been sent. The task has X, and the targets where there are
// logits, or dY; at a part of the head, in the backward pass, each row's sum, then X, the maxima and the targets.
StageDevice::Status StageDevice::make_again(const comm::StageTask& task, std::span<const std::byte> payload,
                                            std::span<std::byte> to) {
  const bool back = task.errand == StageErrand::witness_backward, part = worker_.is_part(task.stage),
             head = worker_.is_head(task.stage);
  const std::int64_t seq = table_.graph().seq, chunk = task.row;
  const auto all = static_cast<std::size_t>(seq);
  // Matrices of the payload, one after another: bytes a row, and whether chunks are sent theirs.
  struct Operand {
    std::size_t bytes;
    bool in_chunks = true;
  };
  const Operand sum{sizeof(double)}, x{row(), !back}, dy{row()}, top{sizeof(float)}, target{sizeof(std::int32_t)};
  std::vector<Operand> operands{x};
  if (back && part) {
    operands = {sum, x, top, target};
  } else if (back) {
    operands.push_back(dy);
  } else if (head || part) {
    operands.push_back(target);
  }
  std::size_t in_all = 0;
  for (const Operand& of : operands) in_all += of.bytes;
  if (task.rows != seq || task.sequence < 0 || task.sequence >= kMadeAgain || chunk <= 0 ||
      payload.size() != all * in_all || (back && head))
    return Status::malformed;
  const std::size_t of_norms = static_cast<std::size_t>(worker_.norms_of(task.stage)) * sizeof(float);
  if (back) {
    const std::size_t before = part ? sum.bytes : 0;
    const Status status =
        worker_.recompute(task.stage, kMadeAgain + task.sequence,
                          RowsIn(boundary(), payload.subspan(all * before, all * row()), width()), kForNoOwner);
    if (status != Status::ok) return status;
  }
  const std::int64_t answers = (seq + chunk - 1) / chunk;
  const bool wants_rows = to.size() != of_norms;  // of dX
  // Of a row in an answer; a part's are the same for all rows.
  const std::size_t answered = head ? 2 * sizeof(double) + row() + sizeof(float) : part ? to.size() / all : row();
  for (std::int64_t answer = 0; answer < answers; ++answer) {
    comm::StageTask one = task;
    one.errand = back ? StageErrand::backward : StageErrand::forward;
    one.sequence = kMadeAgain + task.sequence;
    one.row = static_cast<std::int32_t>((back ? answers - 1 - answer : answer) * chunk);
    one.rows = static_cast<std::int32_t>(std::min(chunk, seq - one.row));
    const auto first = static_cast<std::size_t>(one.row), rows = static_cast<std::size_t>(one.rows);
    std::vector<std::byte> sent;
    std::size_t begin = 0;
    for (const Operand& of : operands) {
      const auto from = payload.begin() + static_cast<std::ptrdiff_t>(begin + first * of.bytes);
      if (of.in_chunks) sent.insert(sent.end(), from, from + static_cast<std::ptrdiff_t>(rows * of.bytes));
      begin += all * of.bytes;
    }
    std::size_t size = back && !wants_rows ? 0 : rows * answered;
    if ((back || head) && answer + 1 == answers) size = std::min(to.size(), size + of_norms);
    if (size > to.size()) return Status::malformed;
    const std::span<std::byte> place = to.first(size);
    Status status = Status::ok;
    if (part) {
      status = back ? part_back(one, sent, place) : pass_part(one, sent, place);
    } else if (head) {
      status = pass_head(one, sent, place, kForNoOwner);
    } else {
      status = back ? go_back(one, sent, place) : pass(one, sent, place, false);
    }
    if (status != Status::ok) return status;
    to = to.subspan(size);
  }
  return to.empty() ? Status::ok : Status::malformed;
}

// Nothing: the sequence was run here. Otherwise X and dY, or at the head each row's sum, X, its maximum, its target;
// and as many other owners as the task says, of which some may have given up their slices meanwhile.
StageDevice::Status StageDevice::add(const comm::StageTask& task, std::span<const std::byte> payload) {
  const bool away = task.errand == StageErrand::take_away;
  if (payload.empty()) return worker_.add(task.owner, task.sequence, nullptr, away);
  const std::size_t of_others = sizeof(std::int32_t) * static_cast<std::size_t>(std::max(0, task.row));
  if (payload.size() < of_others) return Status::malformed;
  std::vector<std::int32_t> others;
  if (of_others > 0) others = ByteReader(payload.last(of_others)).rest<std::int32_t>();
  payload = payload.first(payload.size() - of_others);
  const auto seq = static_cast<std::size_t>(table_.graph().seq);
  ByteReader from(payload);
  std::vector<double> sum;
  std::vector<float> top;
  std::vector<std::int32_t> targets;
  std::span<const std::byte> x, dy;
  const bool of_head = worker_.owns_of_head(task.owner) ||
                       std::ranges::any_of(others, [&](std::int32_t owner) { return worker_.owns_of_head(owner); });
  if (!of_head) {
    x = from.bytes(seq * row());
    dy = from.bytes(seq * row());
  } else {
    sum = from.values<double>(seq);
    x = from.bytes(seq * row());
    top = from.values<float>(seq);
    targets = from.values<std::int32_t>(seq);
  }
  if (!from.done()) return Status::malformed;
  const RowsIn of_x(boundary(), x, width()), of_dy(boundary(), dy, width());
  const pieces::StageWorker::Operands operands{.x = of_x, .dy = of_dy, .top = top, .sum = sum, .targets = targets};
  if (others.empty()) return worker_.add(task.owner, task.sequence, &operands, away);
  others.push_back(task.owner);
  for (const std::int32_t owner : others) {
    const Status status = worker_.add(owner, task.sequence, &operands, away);
    if (status != Status::ok && status != Status::absent) return status;
  }
  return Status::ok;
}

// A task's result has room for partial sums that fit; where they do not, it gets room. It says how many rows had to be
// promoted. Partial sums that are only digested have 64 bits, whatever those have that are compared with them.
StageDevice::Status StageDevice::send_sums(const comm::StageTask& task, std::span<const std::byte> payload,
                                           comm::ResultDraft& result, bool digested) {
  ByteReader from(payload);
  const bool partial = from.value<std::int64_t>() != 0;
  const std::vector<UnitRange> slices = read_slices(from);
  if (!from.done()) return Status::malformed;
  if (digested && partial) return worker_.partial_sums(task.owner, slices, DType::i64, result.outputs[0]);
  const auto promoted = static_cast<std::int32_t>(worker_.promoted_rows(task.owner, slices));
  comm::Header header = result.header;
  if (promoted > 0 && !digested) header.stage_task.rows = promoted;
  const DType asked = partial_sum_type(table_.graph().wire);
  const DType type = partial ? worker_.partial_type(task.owner, slices) : asked;
  header.stage_task.result_bytes *= size_of(type) / size_of(asked);
  if (header.stage_task != result.header.stage_task) {
    if (comm::frame_bytes(header) < 0) return Status::malformed;
    result = {};  // its memory serves the next one
    result = comm::begin_result(header);
  }
  if (partial) return worker_.partial_sums(task.owner, slices, type, result.outputs[0]);
  const std::span<std::byte> to = result.outputs[0];
  if (to.size() % element() != 0) return Status::malformed;
  ByteWriter write(to);
  const auto elements = static_cast<std::int64_t>(to.size() / element());
  const RowsOut gradient(wire(), write, to.size(), std::max<std::int64_t>(1, elements));
  const Status status = worker_.gradient(task.owner, slices, gradient.rows());
  if (status == Status::ok) gradient.send();
  return status;
}

StageDevice::Status StageDevice::carry_out(const comm::StageTask& task, std::span<const std::byte> payload,
                                           std::span<const std::byte> reach, comm::ResultDraft& result, bool digested) {
  const std::span<std::byte> to = result.outputs[0];
  switch (task.errand) {
    case StageErrand::begin: worker_.clear(); return Status::ok;
    case StageErrand::hold: return hold(task, payload, reach);
    case StageErrand::forward: {
      const bool head = worker_.is_head(task.stage);
      if (task.row == 0 && worker_.memory() + worker_.kept_by_sequence(task.stage) > memory_) {
        if (const Status status = worker_.settle(); status != Status::ok) return status;
      }
      if (worker_.is_part(task.stage)) return pass_part(task, payload, to);
      return head ? pass_head(task, payload, to, task.owner) : pass(task, payload, to, true);
    }
    case StageErrand::recompute: {
      if (payload.size() % row() != 0 || !to.empty()) return Status::malformed;
      return worker_.recompute(task.stage, task.sequence, RowsIn(boundary(), payload, width()), task.owner);
    }
    case StageErrand::backward:
      return worker_.is_part(task.stage) ? part_back(task, payload, to) : go_back(task, payload, to);
    case StageErrand::sum:
    case StageErrand::take_away: return add(task, payload);
    case StageErrand::send_sums: return send_sums(task, payload, result, digested);
    case StageErrand::witness_forward:
    case StageErrand::witness_backward: return make_again(task, payload, to);
    case StageErrand::none: break;
  }
  return Status::malformed;
}

std::optional<std::variant<comm::ResultDraft, comm::Reason>> StageDevice::execute(const comm::TaskView& task,
                                                                                  comm::Frame& frame) {
  const comm::StageTask& asked = task.header.stage_task;
  comm::ResultDraft nothing;
  switch (asked.errand) {
    case StageErrand::begin:
      added_.clear();
      (void)carry_out(asked, {}, {}, nothing);
      in_reach_.clear();
      return std::nullopt;
    case StageErrand::take_away:  // under the number of what is to be taken away, if that was ever added
      if (added_.erase(task.header.tasklet) > 0) (void)carry_out(asked, task.operands[0], {}, nothing);
      return std::nullopt;
    default: break;
  }
  TaskletId& last = comm::makes_again(asked.errand) ? last_again_ : last_;
  if (task.header.tasklet <= last) return std::nullopt;
  last = task.header.tasklet;
  if (asked.errand == StageErrand::hold) {
    (void)carry_out(asked, task.operands[0], task.reach, nothing);
    if (brings_places(asked, task.operands[0])) in_reach_.push_back(std::move(frame));
    return std::nullopt;
  }
  if (task.header.wire != wire()) return comm::Reason::malformed;
  comm::Header whole = task.header;
  whole.digest = false;  // of an answer that is made all the same
  comm::ResultDraft result = comm::begin_result(comm::result_header(whole));
  switch (carry_out(asked, task.operands[0], task.reach, result, task.header.digest)) {
    case Status::ok: break;
    case Status::absent: return comm::Reason::absent;
    case Status::malformed: return comm::Reason::malformed;
    case Status::diverged: return comm::Reason::non_finite;
  }
  if (asked.errand == StageErrand::sum) {
    added_.insert(task.header.tasklet);
    if (task.header.fault != comm::InjectedFault::none) worker_.falsify(asked.owner, task.header.sequence);
  }
  if (worker_.memory() > memory_ && worker_.settle() != Status::ok) return comm::Reason::non_finite;
  if (worker_.memory() > memory_) return comm::Reason::memory;
  return result;
}

}  // namespace cleave::device
