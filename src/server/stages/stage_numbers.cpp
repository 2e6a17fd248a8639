// Payloads of messages, as in docs/wire_format.md.
#include "stages/stage_numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "blocks.hpp"
#include "cleave/base/error.hpp"
#include "cleave/kernels/product_check.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "cleave/kernels/wire.hpp"
#include "cleave/plan/stage_cost.hpp"

namespace cleave::server {

namespace {

using comm::StageErrand;
using pieces::Columns;
using pieces::Region;
using pieces::UnitRange;
using sched::Errand;
using sched::Tasklet;

constexpr std::int64_t kWord = 8, kFloat = 4;
// What plans and simulations count with, as it is put into messages below.
static_assert(plan::kHeadRowDown == sizeof(std::int32_t) && plan::kHeadRowUp == 2 * sizeof(double) + sizeof(float) &&
              plan::kHeadRowBack == sizeof(double) + sizeof(float) + sizeof(std::int32_t) &&
              plan::kPartRowOfBlock == 2 * sizeof(float) && plan::kPartRowUp == sizeof(float) &&
              plan::kOwnerNumber == sizeof(std::int32_t) && plan::kSliceRecord == sizeof(UnitRange));
constexpr double kLargestLoss = 3 * static_cast<double>(std::numeric_limits<float>::max());
constexpr std::size_t kRowsOfLoss = 16;  // rows that kernels::cross_entropy() adds up first

StageErrand errand_of(const Tasklet& tasklet) {
  switch (tasklet.errand) {
    case Errand::weights: return StageErrand::hold;
    case Errand::forward: return StageErrand::forward;
    case Errand::recompute: return StageErrand::recompute;
    case Errand::backward: return StageErrand::backward;
    case Errand::replay: return tasklet.item.back ? StageErrand::backward : StageErrand::forward;
    case Errand::sum: return StageErrand::sum;
    case Errand::send_sums: return StageErrand::send_sums;
    case Errand::witness: return tasklet.item.back ? StageErrand::witness_backward : StageErrand::witness_forward;
    case Errand::witness_sums: return StageErrand::send_sums;
    case Errand::none: break;
  }
  CLEAVE_ASSERT(false, "tasklet {} has no errand", tasklet.id.value);
  std::abort();
}

bool is_norm_backward(model::OpKind kind) {
  return kind == model::OpKind::layer_norm_backward || kind == model::OpKind::rms_norm_backward;
}

}  // namespace

void StageNumbers::begin(const plan::StagePlan& plan) {
  const model::StepGraph& graph = work_.graph();
  std::unique_ptr<pieces::PieceTable>& table = tables_[&graph];
  if (!table) table = std::make_unique<pieces::PieceTable>(graph);
  table_ = table.get();
  batch_ = graph.batch;
  seq_ = graph.seq;
  width_ = table_->piece(0).width;
  wire_ = work_.wire();
  element_ = size_of(wire_);
  row_bytes_ = row_bytes(graph.boundary, width_);
  const auto boundary = static_cast<std::size_t>(batch_ * seq_ * row_bytes_),
             rows = static_cast<std::size_t>(batch_ * seq_);
  head_parts_ = plan.head_parts;
  head_ = static_cast<std::int32_t>(std::ssize(plan.stages) - head_parts_);
  begin_head();
  stages_.resize(plan.stages.size());
  x_.resize(static_cast<std::size_t>(head_) + 1);
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    Stage& stage = stages_[s];
    stage.first = in_table(plan.stages[s].first);
    stage.end = stage.first + plan.stages[s].end - plan.stages[s].first;
    stage.norms = pieces::norm_elements(*table_, stage.first, stage.end);
    stage.norms_of.assign(static_cast<std::size_t>(batch_), {});
    if (s < static_cast<std::size_t>(head_)) {
      stage.dy.resize(boundary);
      x_[s + 1].resize(boundary);
    }
  }
  tiled_ = TiledStages(*table_, plan);
  if (plan.has_tiles()) work_.tensors().run_only(tiled_.operations(), tiled_.made());
  top_.resize(rows);
  sum_.resize(rows);
  loss_.assign(rows, 0.0);
  slices_.clear();
  roles_.clear();
  own_.clear();
  sums_.clear();
  kept_.clear();
  partial_.clear();
  open_sums_ = 0;
  frames_.clear();
  made_here_.clear();
  norms_folded_.clear();
  waiting_.clear();
  added_.clear();
  promoted_rows_ = 0;
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

// Between stages boundaries stay as they travel. X and dX of the lowest stage are tensors of the graph.
std::span<std::byte> StageNumbers::rows_between(KeptVector<std::byte>& boundary, const RowRange& of) const {
  return std::span(boundary).subspan(static_cast<std::size_t>((of.sequence * seq_ + of.row) * row_bytes_),
                                     static_cast<std::size_t>(of.rows * row_bytes_));
}

kernels::Rows StageNumbers::rows_of(TensorId tensor, const RowRange& of) {
  return whole(tensor).band(of.sequence * seq_ + of.row, of.sequence * seq_ + of.row + of.rows);
}

void StageNumbers::put_x(std::int32_t stage, const RowRange& of, ByteWriter& to) {
  if (stage > 0) return to.put(std::span<const std::byte>(rows_between(x_of(stage), of)));
  kernels::to_wire(boundary_type(), rows_of(table_->program(0).x(), of), to.rest().data());
  to.skip(static_cast<std::size_t>(of.rows * row_bytes_));
}

void StageNumbers::put_dy(std::int32_t stage, const RowRange& of, ByteWriter& to) {
  to.put(std::span<const std::byte>(rows_between(at(stage).dy, of)));
}

void StageNumbers::take_x(std::int32_t stage, const RowRange& of, std::span<const std::byte> rows) {
  std::ranges::copy(rows, rows_between(x_of(stage), of).begin());
}

void StageNumbers::take_dx(std::int32_t stage, const RowRange& of, std::span<const std::byte> rows) {
  if (stage > 0) {
    std::ranges::copy(rows, rows_between(at(stage - 1).dy, of).begin());
    return;
  }
  const auto& operations = work_.graph().operations;
  const auto reader = std::ranges::find(operations, model::OpKind::embed_backward, &model::Operation::kind);
  if (reader == operations.end()) return;  // nobody wants it
  kernels::from_wire(boundary_type(), rows.data(), rows_of(reader->in[1].tensor, of));
}

pieces::NeededParameters StageNumbers::needed(const Tasklet& load) {
  const Stage& stage = at(load.stage);
  if (load.item.owner < 0) return pieces::parameters_of_stage(*table_, stage.first, stage.end);
  return pieces::parameters_of(*table_,
                               pieces::steps_of_owner(*table_, stage.first, stage.end, slices_.at(load.item.owner)));
}

std::int64_t StageNumbers::operands_of_sum(std::int32_t stage) const {
  return has_logits(stage) ? seq_ * (row_bytes_ + plan::kHeadRowBack) : 2 * seq_ * row_bytes_;
}

std::int64_t StageNumbers::operand_bytes(const Tasklet& tasklet) {
  const sched::StageItem& item = tasklet.item;
  switch (errand_of(tasklet)) {
    case StageErrand::hold: {
      const bool is_owner = item.owner >= 0;
      if (!item.weights && !item.slices) return 0;
      std::int64_t bytes = 3 * kWord;
      if (is_owner) bytes += plan::kSliceRecord * std::ssize(slices_.at(item.owner));
      if (!item.weights) return bytes;
      bytes += static_cast<std::int64_t>(sizeof(comm::OperandPlace)) * std::ssize(places_);
      return bytes + pieces::bytes_of(work_.graph(), sent_of(tasklet)) + exponent_bytes(tasklet);
    }
    case StageErrand::forward: return item.rows * (row_bytes_ + (has_logits(tasklet.stage) ? plan::kHeadRowDown : 0));
    case StageErrand::recompute: return seq_ * row_bytes_;
    case StageErrand::backward: return item.rows * (is_part(tasklet.stage) ? plan::kHeadRowBack : row_bytes_);
    case StageErrand::sum:
      if (item.others) return operands_of_sum(tasklet.stage) + plan::kOwnerNumber * std::ssize(*item.others);
      return own_.contains({item.owner, item.sequence, tasklet.piece.device.value}) ? 0
                                                                                    : operands_of_sum(tasklet.stage);
    case StageErrand::witness_forward:
      return seq_ * (row_bytes_ + (has_logits(tasklet.stage) ? plan::kHeadRowDown : 0));
    case StageErrand::witness_backward:
      return seq_ * (row_bytes_ + (is_part(tasklet.stage) ? plan::kHeadRowBack : row_bytes_));
    case StageErrand::send_sums: return 2 * kWord + plan::kSliceRecord * std::ssize(*item.slices);
    default: return 0;
  }
}

std::int64_t StageNumbers::result_bytes(const Tasklet& tasklet) {
  const sched::StageItem& item = tasklet.item;
  const std::int64_t norms = item.returns_norms ? at(tasklet.stage).norms * kFloat : 0;
  switch (errand_of(tasklet)) {
    case StageErrand::forward:
    case StageErrand::witness_forward:
      if (!item.returns_rows) return 0;
      if (is_part(tasklet.stage))
        return item.rows * (plan::kPartRowOfBlock * blocks_of(tasklet.stage) + plan::kPartRowUp);
      return is_head(tasklet.stage) ? item.rows * (row_bytes_ + plan::kHeadRowUp) + norms : item.rows * row_bytes_;
    case StageErrand::backward:
    case StageErrand::witness_backward:
      if (is_part(tasklet.stage)) return item.returns_rows ? share_bytes(item.rows) : 0;
      return (item.returns_rows ? item.rows * row_bytes_ : 0) + norms;
    case StageErrand::send_sums: {
      std::int64_t elements = 0;
      for (const Region& region : pieces::regions_of(*table_, ranges_of(*item.slices))) elements += region.elements();
      // A witness's partial sums are digested with 64 bits, in whatever type the owner's came.
      if (item.partial && tasklet.is_witness()) return elements * kWord;
      return elements * (item.partial ? size_of(partial_sum_type(wire_)) : element_);
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
  header.wire = header.output = wire_;
  header.panels = tasklet.run.panels;
  header.digest = tasklet.is_witness();
  const sched::StageItem& item = tasklet.item;
  header.stage_task = {.errand = errand_of(tasklet),
                       .stage = tasklet.stage,
                       .owner = item.owner,
                       .sequence = item.sequence,
                       .row = static_cast<std::int32_t>(tasklet.errand == Errand::witness ? item.chunk : item.row),
                       .rows = static_cast<std::int32_t>(item.rows),
                       .operand_bytes = operand_bytes(tasklet),
                       .result_bytes = result_bytes(tasklet),
                       .memory = tasklet.errand == Errand::weights ? tasklet.piece.resident.value() : 0};
  return header;
}

void StageNumbers::put_weights(const pieces::NeededParameters& parameters, ByteWriter& to) {
  for (const auto& [id, part] : parameters) {
    const float* const data = work_.tensors().parameter(id).value.data();
    const DType type = pieces::sent_as(work_.graph(), id);
    pieces::for_needed(work_.graph().tensor(id), part, [&](std::int64_t first, std::int64_t count) {
      kernels::to_wire(type, {data + first, 1, count}, to.rest().data());
      to.skip(static_cast<std::size_t>(count * size_of(type)));
    });
  }
}

void StageNumbers::put_operands(std::int32_t stage, std::int64_t sequence, ByteWriter& to) {
  const auto first = static_cast<std::size_t>(sequence * seq_), rows = static_cast<std::size_t>(seq_);
  if (is_part(stage)) join_rows({sequence, 0, seq_});
  if (has_logits(stage)) to.put(std::span<const double>(sum_).subspan(first, rows));
  put_x(stage, {sequence, 0, seq_}, to);
  if (!has_logits(stage)) return put_dy(stage, {sequence, 0, seq_}, to);
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
      if (item.owner >= 0) {
        put_slices(slices_.at(item.owner));
      } else {
        to.put_value((item.keeps ? comm::kKeepsValues : 0) | (places_.empty() ? 0 : comm::kWeightsInPlace) |
                     (sums_late_ ? comm::kSumsLate : 0));
      }
      to.put(std::span<const comm::OperandPlace>(places_));
      if (item.weights) put_weights(sent_of(tasklet), to);
      if (exponent_bytes(tasklet) > 0) to.put(std::span<const std::int16_t>(head_exponents()));
      break;
    case StageErrand::forward:
      put_x(stage, {item.sequence, item.row, item.rows}, to);
      if (has_logits(stage))
        to.put(work_.inputs().targets.subspan(static_cast<std::size_t>(item.sequence * seq_ + item.row),
                                              static_cast<std::size_t>(item.rows)));
      break;
    case StageErrand::witness_forward:
      put_x(stage, {item.sequence, 0, seq_}, to);
      if (has_logits(stage))
        to.put(work_.inputs().targets.subspan(static_cast<std::size_t>(item.sequence * seq_),
                                              static_cast<std::size_t>(seq_)));
      break;
    case StageErrand::witness_backward:
      if (is_part(stage)) {
        put_operands(stage, item.sequence, to);
        break;
      }
      put_x(stage, {item.sequence, 0, seq_}, to);
      put_dy(stage, {item.sequence, 0, seq_}, to);
      break;
    case StageErrand::recompute: put_x(stage, {item.sequence, 0, seq_}, to); break;
    case StageErrand::backward:
      if (is_part(stage)) {
        put_row_sums({item.sequence, item.row, item.rows}, to);
      } else {
        put_dy(stage, {item.sequence, item.row, item.rows}, to);
      }
      break;
    case StageErrand::sum:
      if (!payload.empty()) put_operands(stage, item.sequence, to);
      if (item.others) to.put(std::span<const std::int32_t>(*item.others));
      break;
    case StageErrand::send_sums:
      to.put_value<std::int64_t>(item.partial ? 1 : 0);
      put_slices(ranges_of(*item.slices));
      break;
    default: break;
  }
}

// A replica on this host reads weights where the server has them: parameters do not change before its work is done.
// Small parameters, which are not in memory that others can read, are sent.
void StageNumbers::find_places(const Tasklet& load, const Reader& reader) {
  places_.clear();
  if (load.errand != Errand::weights || !load.item.weights || load.item.owner >= 0 || reader.transport == nullptr ||
      wire_ != DType::f32 || is_part(load.stage))
    return;
  bool any = false;
  for (const auto& [id, part] : needed(load)) {
    const auto offset = reader.transport->reached(reader.rank, work_.tensors().parameter(id).value.data());
    places_.push_back({offset.value_or(-1), work_.graph().tensor(id).cols});
    any = any || offset;
  }
  if (!any) places_.clear();
}

// The parameters of a load that are sent: those without a place.
pieces::NeededParameters StageNumbers::sent_of(const Tasklet& load) {
  pieces::NeededParameters parameters = needed(load);
  auto place = places_.begin();
  std::erase_if(parameters, [&](const auto&) { return place != places_.end() && place++->offset >= 0; });
  return parameters;
}

comm::Frame StageNumbers::message(const Tasklet& tasklet, const FaultOrder& fault, const Reader& reader,
                                  const SipKey* key) {
  const sched::StageItem& item = tasklet.item;
  find_places(tasklet, reader);
  if (tasklet.errand == Errand::weights && item.slices) slices_[item.owner] = ranges_of(*item.slices);
  comm::Header header = header_of(tasklet);
  header.fault = fault.fault;
  header.sequence = fault.seed;
  if (comm::frame_bytes(header) < 0)
    throw InputError(fmt::format("stage {} has more bytes than a message may have", tasklet.stage),
                     "devices with less memory, or plan.layout: tiles");
  comm::TaskDraft draft = comm::begin_task(header);
  fill(tasklet, draft.operands[0]);
  if (key != nullptr) std::ranges::copy(*key, draft.key.begin());
  const DeviceId device = tasklet.piece.device;
  if (tasklet.errand == Errand::weights && item.owner >= 0) {
    if (item.slices && !item.weights) {
      roles_[tasklet.id] = {device, tasklet.stage, item.owner};
    } else {
      std::erase_if(roles_, [&](const auto& role) { return role.second.owner == item.owner; });
    }
  }
  // When a backward pass begins, the device keeps the operands of slices that it owns.
  const bool opens = tasklet.errand == Errand::recompute ||
                     (errand_of(tasklet) == StageErrand::backward && item.keeps && item.row + item.rows == seq_) ||
                     (is_head(tasklet.stage) && errand_of(tasklet) == StageErrand::forward && item.row == 0);
  for (const auto& role : roles_) {
    if (opens && role.second.device == device && role.second.stage == tasklet.stage &&
        (item.owner == kForAllOwners || item.owner == role.second.owner))
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
  header.wire = header.output = wire_;
  header.panels = 1;
  header.stage_task.errand = StageErrand::begin;
  return comm::seal_header(comm::begin_task(header));
}

comm::Frame StageNumbers::take_away(const Tasklet& sum) {
  comm::Header header = header_of(sum);
  header.stage_task.errand = StageErrand::take_away;
  header.stage_task.operand_bytes = operands_of_sum(sum.stage) + plan::kOwnerNumber * sum.item.row;
  comm::TaskDraft draft = comm::begin_task(header);
  ByteWriter to(draft.operands[0]);
  put_operands(sum.stage, sum.item.sequence, to);
  if (sum.item.others) to.put(std::span<const std::int32_t>(*sum.item.others));
  return comm::seal_header(std::move(draft));
}

bool StageNumbers::place(const Tasklet& tasklet, const comm::ResultView& result, Sums64 sums) {
  const sched::StageItem& item = tasklet.item;
  comm::StageTask asked = header_of(tasklet).stage_task;
  asked.operand_bytes = result.header.stage_task.operand_bytes;  // own_ has forgotten whether a sum was sent operands
  const std::int64_t in_64_bits = asked.result_bytes / size_of(partial_sum_type(wire_)) * size_of(DType::i64);
  if (item.partial && result.header.stage_task.result_bytes == in_64_bits) asked.result_bytes = in_64_bits;
  if (tasklet.errand == Errand::send_sums) asked.rows = std::min(result.header.stage_task.rows, rows_of_sums(item));
  if (result.header.work != comm::Work::stage || result.header.device != tasklet.piece.device ||
      result.header.stage_task != asked)
    return false;
  const std::span<const std::byte> bytes = result.outputs[0];
  if (bytes.empty()) return true;
  if (is_part(tasklet.stage) && tasklet.errand != Errand::send_sums) return place_part(tasklet, bytes);
  if (tasklet.errand == Errand::send_sums) {
    const bool in_64 = std::ssize(bytes) == in_64_bits, may_be_any = in_64 && sums == Sums64::any;
    if (item.partial && !may_be_any && !may_be_sums(bytes, in_64)) return false;
    promoted_rows_ += asked.rows;
    return place_sums(tasklet, bytes);
  }
  ByteReader from(bytes);
  const RowRange of{item.sequence, item.row, item.rows};
  const auto first = static_cast<std::ptrdiff_t>(item.sequence * seq_ + item.row);
  const auto rows = static_cast<std::size_t>(item.rows);
  const auto of_rows = static_cast<std::size_t>(item.rows * row_bytes_);
  const auto is_finite = [&](std::span<const std::byte> values) {
    return kernels::all_finite(boundary_type(), values.data(), item.rows, width_);
  };
  const bool head = tasklet.errand == Errand::forward && is_head(tasklet.stage);
  if (head) {
    const auto sum = from.values<double>(rows), loss = from.values<double>(rows);
    const std::span<const std::byte> dx = from.bytes(of_rows);
    const auto top = from.values<float>(rows);
    // A sum is of exp(logit - maximum of the row): every term is at most 1, and one is 1. A loss is a difference of two
    // logits, plus a logarithm.
    const auto vocabulary = static_cast<double>(table_->vocabulary());
    const auto may_be_sum = [&](double value) { return value > 0.5 && value < 2 * vocabulary; };
    const auto may_be_loss = [](double value) { return std::abs(value) < kLargestLoss; };
    if (!from.ok() || !is_finite(dx) || !kernels::all_finite(top) || !std::ranges::all_of(sum, may_be_sum) ||
        !std::ranges::all_of(loss, may_be_loss))
      return false;
    std::ranges::copy(sum, sum_.begin() + first);
    std::ranges::copy(loss, loss_.begin() + first);
    std::ranges::copy(top, top_.begin() + first);
    take_dx(tasklet.stage, of, dx);
  } else if (item.returns_rows) {
    const std::span<const std::byte> values = from.bytes(of_rows);
    if (!from.ok() || !is_finite(values)) return false;
    if (tasklet.errand == Errand::forward) {
      take_x(tasklet.stage + 1, of, values);
    } else {
      take_dx(tasklet.stage, of, values);
    }
  }
  const auto norms = from.rest<float>();
  if (!from.ok() || !kernels::all_finite(norms)) return false;
  if (!norms.empty())
    at(tasklet.stage).norms_of[static_cast<std::size_t>(item.sequence)].assign(norms.begin(), norms.end());
  return true;
}

bool StageNumbers::place_sums(const Tasklet& tasklet, std::span<const std::byte> bytes) {
  const std::vector<Region> regions = pieces::regions_of(*table_, ranges_of(*tasklet.item.slices));
  if (!tasklet.item.partial) {
    if (!kernels::all_representable(wire_, bytes.data(), std::ssize(bytes) / element_)) return false;
    const float scale = work_.unit().scale_of_sent();
    for (const Region& region : regions) {
      const kernels::Rows all = whole(gradient_of(region.parameter));
      const kernels::Rows gradient =
          all.band(region.rows.begin, region.rows.end).columns(region.cols.begin, region.cols.end);
      kernels::from_wire(wire_, bytes.data(), gradient);
      if (scale != 1) scale_rows(gradient, scale);
      bytes = bytes.subspan(static_cast<std::size_t>(region.elements() * element_));
    }
    return true;
  }
  if (is_read_later(tasklet)) {
    const auto* next = reinterpret_cast<const std::int64_t*>(bytes.data());
    for (const Region& region : regions) {
      partial_[region.op->id].push_back({region, next});
      next += region.elements();
      ++open_sums_;
    }
    return true;
  }
  std::int64_t elements = 0;
  for (const Region& region : regions) elements += region.elements();
  const DType type = std::ssize(bytes) == elements * size_of(DType::i64) ? DType::i64 : DType::i32;
  const std::byte* next = bytes.data();
  for (const Region& region : regions) {
    const model::TensorSpec& spec = work_.graph().tensor(region.parameter);
    Sums& sums = sums_[region.op->id];
    if (sums.total.empty()) sums.total = kernels::TokenSumMatrix(spec.rows, spec.cols, work_.unit());
    sums.regions.push_back(region);
    const kernels::ConstPartialSums came{type, next, region.cols.count()};
    sums.total.add(work_.parallel(), part_of(region), came);
    if (keeps_partial_sums_) keep_sums(tasklet.item.owner, region, came);
    next += region.elements() * size_of(type);
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
  if (is_norm_backward(kernel.kind)) {  // of the last norm, before a head in parts: devices compute all others
    const std::int64_t row = kernel.in.front().row0;
    return join_gradients({row / seq_, row % seq_, kernel.in.front().rows});
  }
  for (const model::TensorView& in : kernel.in) {
    if (in.valid() && work_.graph().tensor(in.tensor).role == model::TensorRole::gradient)
      complete(work_.graph().tensor(in.tensor).parameter);
  }
  kernels_.run(kernel);
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
