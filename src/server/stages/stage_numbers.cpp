// Payloads as docs/wire_format.md has them.
#include "stages/stage_numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cleave/base/error.hpp"
#include "cleave/kernels/token_sums.hpp"

namespace cleave::server {

namespace {

using comm::StageErrand;
using pieces::Columns;
using pieces::Region;
using pieces::UnitRange;
using sched::Errand;
using sched::Tasklet;

constexpr std::int64_t kWord = 8, kFloat = 4;
constexpr std::size_t kRowsOfLoss = 16;  // that kernels::cross_entropy() adds up first

StageErrand errand_of(const Tasklet& tasklet) {
  switch (tasklet.errand) {
    case Errand::weights: return StageErrand::hold;
    case Errand::forward: return StageErrand::forward;
    case Errand::remake: return StageErrand::remake;
    case Errand::backward: return StageErrand::backward;
    case Errand::replay: return tasklet.item.back ? StageErrand::backward : StageErrand::forward;
    case Errand::sum: return StageErrand::sum;
    case Errand::send_sums: return StageErrand::send_sums;
    case Errand::witness:
    case Errand::witness_sums:
    case Errand::none: break;
  }
  CLEAVE_ASSERT(false, "tasklet {} has no errand", tasklet.id.value);
  std::abort();
}

std::vector<UnitRange> ranges_of(const std::vector<plan::PieceSlice>& slices) {
  std::vector<UnitRange> ranges;
  for (const plan::PieceSlice& slice : slices) ranges.push_back({slice.piece, slice.begin, slice.end});
  return ranges;
}

bool all_finite_values(std::span<const float> values) {
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

}  // namespace

void StageNumbers::begin(const plan::StagePlan& plan) {
  const model::StepGraph& graph = work_.graph();
  CLEAVE_ASSERT(work_.wire() == DType::f32, "stages of wire type {}", name_of(work_.wire()));
  if (plan.head_parts > 1)
    throw InputError("no device holds the head of the model, and train has none in parts yet",
                     "devices with more memory, or plan.layout: tiles");
  std::unique_ptr<pieces::PieceTable>& table = tables_[&graph];
  if (!table) table = std::make_unique<pieces::PieceTable>(graph);
  table_ = table.get();
  batch_ = graph.batch;
  seq_ = graph.seq;
  width_ = table_->piece(0).width;
  const auto boundary = static_cast<std::size_t>(batch_ * seq_ * width_),
             rows = static_cast<std::size_t>(batch_ * seq_);
  stages_.resize(plan.stages.size());
  x_.resize(plan.stages.size());
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    Stage& stage = stages_[s];
    stage.first = plan.stages[s].first;
    stage.end = plan.stages[s].end;
    stage.norms = pieces::norm_elements(*table_, stage.first, stage.end);
    stage.norms_of.assign(static_cast<std::size_t>(batch_), {});
    if (s + 1 < stages_.size()) stage.dy.resize(boundary);
    if (s > 0) x_[s].resize(boundary);
  }
  top_.resize(rows);
  sum_.resize(rows);
  loss_.assign(rows, 0.0);
  slices_.clear();
  roles_.clear();
  own_.clear();
  sums_.clear();
  norms_folded_.clear();
  waiting_.clear();
  active_ = true;
}

kernels::Rows StageNumbers::whole(TensorId tensor) {
  const model::TensorSpec& spec = work_.graph().tensor(tensor);
  work_.tensors().need(tensor);
  return work_.tensors().rows({tensor, 0, spec.rows, 0, spec.cols});
}

TensorId StageNumbers::gradient_of(TensorId parameter) const {
  const auto& tensors = work_.graph().tensors;
  const auto found = std::ranges::find_if(tensors, [&](const model::TensorSpec& tensor) {
    return tensor.role == model::TensorRole::gradient && tensor.parameter == parameter;
  });
  return found == tensors.end() ? TensorId() : found->id;
}

std::span<float> StageNumbers::x_rows(std::int32_t stage, std::int64_t sequence, std::int64_t row, std::int64_t rows) {
  float* const first = stage == 0 ? whole(table_->program(0).x()).data : x_[static_cast<std::size_t>(stage)].data();
  return {first + (sequence * seq_ + row) * width_, static_cast<std::size_t>(rows * width_)};
}

std::span<float> StageNumbers::dy_rows(std::int32_t stage, std::int64_t sequence, std::int64_t row, std::int64_t rows) {
  return {at(stage).dy.data() + (sequence * seq_ + row) * width_, static_cast<std::size_t>(rows * width_)};
}

std::span<float> StageNumbers::dx_rows(std::int32_t stage, std::int64_t sequence, std::int64_t row, std::int64_t rows) {
  if (stage > 0) return dy_rows(stage - 1, sequence, row, rows);
  const auto& operations = work_.graph().operations;
  const auto reader = std::ranges::find(operations, model::OpKind::embed_backward, &model::Operation::kind);
  if (reader == operations.end()) return {};  // nobody wants it
  return {whole(reader->in[1].tensor).data + (sequence * seq_ + row) * width_, static_cast<std::size_t>(rows * width_)};
}

pieces::NeededParameters StageNumbers::needed(const Tasklet& load) {
  const Stage& stage = at(load.stage);
  if (load.item.owner < 0) return pieces::parameters_of_stage(*table_, stage.first, stage.end);
  return pieces::parameters_of(*table_,
                               pieces::steps_of_owner(*table_, stage.first, stage.end, slices_.at(load.item.owner)));
}

std::int64_t StageNumbers::operands_of_sum(std::int32_t stage) const {
  return is_head(stage) ? seq_ * (kWord + (width_ + 2) * kFloat) : 2 * seq_ * width_ * kFloat;
}

std::int64_t StageNumbers::operand_bytes(const Tasklet& tasklet) {
  const sched::StageItem& item = tasklet.item;
  switch (errand_of(tasklet)) {
    case StageErrand::hold: {
      const bool is_owner = item.owner >= 0;
      if (!item.weights && !item.slices) return 0;
      std::int64_t bytes = 2 * kWord;
      if (is_owner) bytes += kWord + 3 * kWord * std::ssize(slices_.at(item.owner));
      if (item.weights) bytes += kFloat * pieces::elements_of(work_.graph(), needed(tasklet));
      return bytes;
    }
    case StageErrand::forward: return item.rows * (width_ + (is_head(tasklet.stage) ? 1 : 0)) * kFloat;
    case StageErrand::remake: return seq_ * width_ * kFloat;
    case StageErrand::backward: return item.rows * width_ * kFloat;
    case StageErrand::sum:
      return own_.contains({item.owner, item.sequence, tasklet.piece.device.value}) ? 0
                                                                                    : operands_of_sum(tasklet.stage);
    case StageErrand::send_sums: return 2 * kWord + 3 * kWord * std::ssize(*item.slices);
    default: return 0;
  }
}

std::int64_t StageNumbers::result_bytes(const Tasklet& tasklet) {
  const sched::StageItem& item = tasklet.item;
  const std::int64_t norms = item.returns_norms ? at(tasklet.stage).norms * kFloat : 0;
  switch (errand_of(tasklet)) {
    case StageErrand::forward:
      if (!item.returns_rows) return 0;
      return is_head(tasklet.stage) ? item.rows * (2 * kWord + (width_ + 1) * kFloat) + norms
                                    : item.rows * width_ * kFloat;
    case StageErrand::backward: return (item.returns_rows ? item.rows * width_ * kFloat : 0) + norms;
    case StageErrand::send_sums: {
      std::int64_t elements = 0;
      for (const Region& region : pieces::regions_of(*table_, ranges_of(*item.slices))) elements += region.elements();
      return elements * (item.partial ? kWord : kFloat);
    }
    default: return 0;
  }
}

comm::Header StageNumbers::header_of(const Tasklet& tasklet) {
  comm::Header header;
  header.kind = comm::Kind::task;
  header.tasklet = tasklet.id;
  header.device = tasklet.piece.device;
  header.op = tasklet.op;
  header.work = comm::Work::stage;
  header.panels = tasklet.run.panels;
  const sched::StageItem& item = tasklet.item;
  header.stage_task = {.errand = errand_of(tasklet),
                       .stage = tasklet.stage,
                       .owner = item.owner,
                       .sequence = item.sequence,
                       .row = static_cast<std::int32_t>(item.row),
                       .rows = static_cast<std::int32_t>(item.rows),
                       .operand_bytes = operand_bytes(tasklet),
                       .result_bytes = result_bytes(tasklet),
                       .memory = tasklet.errand == Errand::weights ? tasklet.piece.resident.value() : 0};
  return header;
}

void StageNumbers::put_weights(const pieces::NeededParameters& parameters, ByteWriter& to) {
  for (const auto& [id, part] : parameters) {
    const model::TensorSpec& spec = work_.graph().tensor(id);
    const float* const data = work_.tensors().parameter(id).value.data();
    for (const Columns& run : part.lines.runs()) {
      const std::int64_t lines = part.rows ? 1 : spec.rows;
      const std::int64_t count = part.rows ? run.count() * spec.cols : run.count();
      const std::int64_t first = part.rows ? run.begin * spec.cols : run.begin;
      for (std::int64_t line = 0; line < lines; ++line)
        to.put(std::span<const float>(data + line * spec.cols + first, static_cast<std::size_t>(count)));
    }
  }
}

void StageNumbers::put_operands(std::int32_t stage, std::int64_t sequence, ByteWriter& to) {
  const auto first = static_cast<std::size_t>(sequence * seq_), rows = static_cast<std::size_t>(seq_);
  if (is_head(stage)) to.put(std::span<const double>(sum_).subspan(first, rows));
  to.put(std::span<const float>(x_rows(stage, sequence, 0, seq_)));
  if (!is_head(stage)) return to.put(std::span<const float>(dy_rows(stage, sequence, 0, seq_)));
  to.put(std::span<const float>(top_).subspan(first, rows));
  to.put(work_.inputs().targets.subspan(first, rows));
}

void StageNumbers::fill(const Tasklet& tasklet, std::span<std::byte> payload) {
  const sched::StageItem& item = tasklet.item;
  const std::int32_t stage = tasklet.stage;
  ByteWriter to(payload);
  const auto put_slices = [&](const std::vector<UnitRange>& slices) {
    to.put_value(static_cast<std::int64_t>(std::ssize(slices)));
    to.put(std::span<const UnitRange>(slices));
  };
  switch (errand_of(tasklet)) {
    case StageErrand::hold:
      if (payload.empty()) break;
      to.put_value(at(stage).first);
      to.put_value(at(stage).end);
      if (item.owner >= 0) put_slices(slices_.at(item.owner));
      if (item.weights) put_weights(needed(tasklet), to);
      break;
    case StageErrand::forward:
      to.put(std::span<const float>(x_rows(stage, item.sequence, item.row, item.rows)));
      if (is_head(stage))
        to.put(work_.inputs().targets.subspan(static_cast<std::size_t>(item.sequence * seq_ + item.row),
                                              static_cast<std::size_t>(item.rows)));
      break;
    case StageErrand::remake: to.put(std::span<const float>(x_rows(stage, item.sequence, 0, seq_))); break;
    case StageErrand::backward:
      to.put(std::span<const float>(dy_rows(stage, item.sequence, item.row, item.rows)));
      break;
    case StageErrand::sum:
      if (!payload.empty()) put_operands(stage, item.sequence, to);
      break;
    case StageErrand::send_sums:
      to.put_value<std::int64_t>(item.partial ? 1 : 0);
      put_slices(ranges_of(*item.slices));
      break;
    default: break;
  }
}

comm::Frame StageNumbers::message(const Tasklet& tasklet) {
  const sched::StageItem& item = tasklet.item;
  if (tasklet.errand == Errand::weights && item.slices) slices_[item.owner] = ranges_of(*item.slices);
  const comm::Header header = header_of(tasklet);
  if (comm::frame_bytes(header) < 0)
    throw InputError(fmt::format("stage {} has more bytes than a message may have", tasklet.stage),
                     "devices with less memory, or plan.layout: tiles");
  comm::TaskDraft draft = comm::begin_task(header);
  fill(tasklet, draft.operands[0]);
  const DeviceId device = tasklet.piece.device;
  if (tasklet.errand == Errand::weights && item.owner >= 0) {
    if (item.slices && !item.weights) {
      roles_[tasklet.id] = {device, tasklet.stage, item.owner};
    } else {
      std::erase_if(roles_, [&](const auto& role) { return role.second.owner == item.owner; });
    }
  }
  // A device keeps the operands of slices that it owns when a way back begins.
  const bool opens = tasklet.errand == Errand::remake ||
                     (is_head(tasklet.stage) && errand_of(tasklet) == StageErrand::forward && item.row == 0);
  for (const auto& role : roles_) {
    if (opens && role.second.device == device && role.second.stage == tasklet.stage)
      own_.insert({role.second.owner, item.sequence, device.value});
  }
  if (tasklet.errand == Errand::sum) own_.erase({item.owner, item.sequence, device.value});
  return comm::seal_header(std::move(draft));
}

comm::Frame StageNumbers::begin_message(DeviceId device) const {
  comm::Header header;
  header.kind = comm::Kind::task;
  header.tasklet = TaskletId(0);
  header.device = device;
  header.work = comm::Work::stage;
  header.panels = 1;
  header.stage_task.errand = StageErrand::begin;
  return comm::seal_header(comm::begin_task(header));
}

comm::Frame StageNumbers::take_away(const Tasklet& sum) {
  comm::Header header = header_of(sum);
  header.stage_task.errand = StageErrand::take_away;
  header.stage_task.operand_bytes = operands_of_sum(sum.stage);
  comm::TaskDraft draft = comm::begin_task(header);
  ByteWriter to(draft.operands[0]);
  put_operands(sum.stage, sum.item.sequence, to);
  return comm::seal_header(std::move(draft));
}

bool StageNumbers::place(const Tasklet& tasklet, const comm::ResultView& result) {
  const sched::StageItem& item = tasklet.item;
  comm::StageTask asked = header_of(tasklet).stage_task;
  asked.operand_bytes = result.header.stage_task.operand_bytes;  // of a sum that was its own it cannot be told any more
  if (result.header.work != comm::Work::stage || result.header.device != tasklet.piece.device ||
      result.header.stage_task != asked)
    return false;
  const std::span<const std::byte> bytes = result.outputs[0];
  if (bytes.empty()) return true;
  if (tasklet.errand == Errand::send_sums) return place_sums(tasklet, bytes);
  ByteReader from(bytes);
  const auto first = static_cast<std::size_t>(item.sequence * seq_ + item.row),
             rows = static_cast<std::size_t>(item.rows);
  const auto elements = rows * static_cast<std::size_t>(width_);
  if (tasklet.errand == Errand::forward && is_head(tasklet.stage)) {
    const auto sum = from.values<double>(rows), loss = from.values<double>(rows);
    const auto dx = from.values<float>(elements), top = from.values<float>(rows);
    const auto norms = from.rest<float>();
    const auto finite = [](double value) { return std::isfinite(value); };
    if (!from.ok() || !all_finite_values(dx) || !all_finite_values(top) || !all_finite_values(norms) ||
        !std::ranges::all_of(sum, finite) || !std::ranges::all_of(loss, finite))
      return false;
    std::ranges::copy(sum, sum_.begin() + static_cast<std::ptrdiff_t>(first));
    std::ranges::copy(loss, loss_.begin() + static_cast<std::ptrdiff_t>(first));
    std::ranges::copy(top, top_.begin() + static_cast<std::ptrdiff_t>(first));
    std::ranges::copy(dx, dx_rows(tasklet.stage, item.sequence, item.row, item.rows).begin());
    if (!norms.empty())
      at(tasklet.stage).norms_of[static_cast<std::size_t>(item.sequence)].assign(norms.begin(), norms.end());
    return true;
  }
  if (item.returns_rows) {
    const auto values = from.values<float>(elements);
    if (!from.ok() || !all_finite_values(values)) return false;
    const std::span<float> to = tasklet.errand == Errand::forward
                                    ? x_rows(tasklet.stage + 1, item.sequence, item.row, item.rows)
                                    : dx_rows(tasklet.stage, item.sequence, item.row, item.rows);
    if (!to.empty()) std::ranges::copy(values, to.begin());
  }
  const auto norms = from.rest<float>();
  if (!from.ok() || !all_finite_values(norms)) return false;
  if (!norms.empty())
    at(tasklet.stage).norms_of[static_cast<std::size_t>(item.sequence)].assign(norms.begin(), norms.end());
  return true;
}

bool StageNumbers::place_sums(const Tasklet& tasklet, std::span<const std::byte> bytes) {
  const std::vector<Region> regions = pieces::regions_of(*table_, ranges_of(*tasklet.item.slices));
  ByteReader from(bytes);
  if (!tasklet.item.partial) {
    const auto values = from.rest<float>();
    if (!all_finite_values(values)) return false;
    const float* next = values.data();
    for (const Region& region : regions) {
      const kernels::Rows gradient = whole(gradient_of(region.parameter));
      for (std::int64_t i = region.rows.begin; i < region.rows.end; ++i, next += region.cols.count())
        std::copy_n(next, region.cols.count(), gradient.row(i) + region.cols.begin);
    }
    return true;
  }
  const auto values = from.rest<std::int64_t>();
  const std::int64_t* next = values.data();
  for (const Region& region : regions) {
    const model::TensorSpec& spec = work_.graph().tensor(region.parameter);
    Sums& sums = sums_[region.op->id];
    sums.total.resize(static_cast<std::size_t>(spec.elements()));
    sums.regions.push_back(region);
    kernels::add_partial_sums(
        work_.parallel(), region.rows.count(), region.cols.count(), {DType::i64, next, region.cols.count()},
        {DType::i64, sums.total.data() + region.rows.begin * spec.cols + region.cols.begin, spec.cols});
    next += region.elements();
  }
  return true;
}

void StageNumbers::run(const model::Operation& kernel) {
  if (kernel.kind == model::OpKind::embed_backward) {
    for (std::size_t i = 0; i < kernel.out.size(); ++i) {
      if (!kernel.out[i].valid()) continue;
      model::Operation& of_table = waiting_.emplace_back(kernel);
      for (std::size_t k = 0; k < of_table.out.size(); ++k) {
        if (k != i) of_table.out[k] = {};
      }
    }
    return;
  }
  for (const model::TensorView& in : kernel.in) {
    if (in.valid() && work_.graph().tensor(in.tensor).role == model::TensorRole::gradient)
      complete(work_.graph().tensor(in.tensor).parameter);
  }
  kernels_.run(kernel);
}

// Of all that adds to the gradient of a parameter nothing is to come any more.
void StageNumbers::complete(TensorId parameter) {
  for (auto& [op, sums] : sums_) {
    if (sums.regions.empty() || sums.regions.front().parameter != parameter) continue;
    const kernels::Rows gradient = whole(gradient_of(parameter));
    for (const Region& region : sums.regions) {
      const auto status = kernels::finish_token_products(
          work_.parallel(), region.rows.count(), region.cols.count(),
          {DType::i64, sums.total.data() + region.rows.begin * gradient.cols + region.cols.begin, gradient.cols},
          {gradient.row(region.rows.begin) + region.cols.begin, gradient.ld});
      if (status != kernels::ProductStatus::ok)
        throw CheckFailure("a gradient is not finite: the training has diverged");
    }
    sums.regions.clear();
  }
  for (const Stage& stage : stages_) {
    std::size_t first = 0;
    for (std::int64_t piece = stage.first; piece < stage.end; ++piece) {
      for (const TensorId norm : table_->piece(piece).norms) {
        const auto size = static_cast<std::size_t>(work_.graph().tensor(norm).elements());
        if (norm == parameter && norms_folded_.insert(norm).second) {
          KeptVector<std::int64_t> total(size, 0);
          for (const KeptVector<float>& of : stage.norms_of) {
            if (kernels::add_to_token_sums(std::span<const float>(of).subspan(first, size), total) !=
                kernels::ProductStatus::ok)
              throw CheckFailure("a norm's gradient is too large: the training has diverged");
          }
          kernels::finish_token_sums(total, {whole(gradient_of(norm)).data, size});
        }
        if (table_->piece(piece).backward) first += size;
      }
    }
  }
  std::erase_if(waiting_, [&](const model::Operation& op) {
    const bool adds = std::ranges::any_of(op.out, [&](const model::TensorView& out) {
      return out.valid() && work_.graph().tensor(out.tensor).parameter == parameter;
    });
    if (adds) kernels_.run(op);
    return adds;
  });
}

double StageNumbers::loss() const {
  double sum = 0;
  for (std::size_t begin = 0; begin < loss_.size(); begin += kRowsOfLoss) {
    double of_rows = 0;
    for (std::size_t row = begin; row < std::min(loss_.size(), begin + kRowsOfLoss); ++row) of_rows += loss_[row];
    sum += of_rows;
  }
  return sum;
}

}  // namespace cleave::server
