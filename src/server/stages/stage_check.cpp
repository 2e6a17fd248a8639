// Answers are recomputed, and compared.
#include "stages/stage_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cleave/base/byte_cursor.hpp"
#include "cleave/base/error.hpp"

namespace cleave::server {

namespace {

using pieces::StageWorker;
using sched::Errand;
using sched::Tasklet;
using Status = StageWorker::Status;

constexpr std::int32_t kOwner = 0;  // the owner's number in a worker that makes sums again

SipTag tag_of(const SipKey& key, const std::vector<std::vector<std::byte>>& answers) {
  SipHash hash(key);
  for (const std::vector<std::byte>& answer : answers) hash.take(answer);
  return hash.tag();
}

}  // namespace

void StageCheck::begin() {
  visits_.clear();
  sums_.clear();
  keys_.clear();
  worker_.reset();
  held_ = -1;
}

void StageCheck::placed(const Tasklet& tasklet) {
  const sched::StageItem& item = tasklet.item;
  switch (tasklet.errand) {
    case Errand::forward:
    case Errand::backward:
      visits_[{tasklet.stage, tasklet.errand == Errand::backward, item.sequence}][item.row] = {
          .rows = item.rows,
          .returns_rows = item.returns_rows,
          .returns_norms = item.returns_norms,
          .device = tasklet.piece.device};
      break;
    case Errand::sum:
      sums_[item.owner].sequences.insert(item.sequence);
      if (!item.others) break;
      for (const std::int32_t other : *item.others) sums_[other].sequences.insert(item.sequence);
      break;
    case Errand::send_sums: {
      Sums& sums = sums_[item.owner];
      sums.device = tasklet.piece.device;
      sums.stage = tasklet.stage;
      sums.partial = item.partial;
      sums.slices.insert(sums.slices.end(), item.slices->begin(), item.slices->end());
      break;
    }
    default: break;
  }
}

const SipKey& StageCheck::key_of(TaskletId witness) {
  const auto found = keys_.find(witness);
  return found != keys_.end() ? found->second : keys_.emplace(witness, secret_key()).first->second;
}

std::vector<std::int64_t> StageCheck::order_of(const Parts& parts, bool back) {
  std::vector<std::int64_t> rows;
  for (const auto& [row, part] : parts) rows.push_back(row);
  if (back) std::ranges::reverse(rows);
  return rows;
}

StageCheck::Bytes StageCheck::stored(const VisitId& visit, std::int64_t row, const Part& part) {
  const auto [stage, back, sequence] = visit;
  return numbers_.stored_answer({.stage = stage, .back = back, .sequence = sequence, .row = row, .rows = part.rows},
                                part.returns_rows, part.returns_norms);
}

StageWorker& StageCheck::worker_of(std::int32_t stage) {
  if (held_ == stage) return *worker_;
  worker_ = std::make_unique<StageWorker>(numbers_.table(), work_.parallel());
  const Status status = numbers_.hold_stage(*worker_, stage);
  CLEAVE_ASSERT(status == Status::ok, "stage {} cannot be held", stage);
  held_ = stage;
  return *worker_;
}

StageCheck::Parts StageCheck::without_gaps(const Parts& parts, bool back) const {
  Parts all = parts;
  std::int64_t next = back && !parts.empty() ? parts.begin()->first : 0;
  for (const auto& [row, part] : parts) {
    if (next < row) all[next].rows = row - next;
    next = row + part.rows;
  }
  if (back && next < work_.graph().seq) all[next].rows = work_.graph().seq - next;
  return all;
}

std::vector<StageCheck::Bytes> StageCheck::make_again(const VisitId& visit, const Parts& parts) {
  const auto [stage, back, sequence] = visit;
  StageWorker& worker = worker_of(stage);
  const auto made = [](Status status) {
    CLEAVE_ASSERT(status == Status::ok || status == Status::diverged, "a visit cannot be made again: {}",
                  static_cast<int>(status));
    return status == Status::ok;
  };
  std::vector<Bytes> answers;
  if (back && !made(numbers_.recompute(worker, stage, sequence))) return answers;
  const Parts all = without_gaps(parts, back);
  for (const std::int64_t row : order_of(all, back)) {
    const Part& part = all.at(row);
    const StageNumbers::AnswerRows rows{
        .stage = stage, .back = back, .sequence = sequence, .row = row, .rows = part.rows};
    Bytes answer;
    if (!made(numbers_.answer(worker, rows, part.returns_rows, part.returns_norms, answer))) return answers;
    if (parts.contains(row)) answers.push_back(std::move(answer));
  }
  return answers;
}

StageCheck::Wrong StageCheck::compare_visit(const VisitId& visit, const SipKey& key,
                                            const std::optional<SipTag>& answer, bool by_server) {
  Parts& parts = visits_.at(visit);
  Wrong wrong;
  std::vector<Bytes> delivered;
  std::vector<DeviceId> senders;
  for (const std::int64_t row : order_of(parts, std::get<bool>(visit))) {
    delivered.push_back(stored(visit, row, parts.at(row)));
    senders.push_back(parts.at(row).device);
  }
  if (answer && same_tag(*answer, tag_of(key, delivered))) return wrong;
  wrong.made_again = true;
  for (auto& [row, part] : parts) {
    if (!std::exchange(part.looked_at, true)) wrong.answers.push_back(part.device);
  }
  const std::vector<Bytes> own = make_again(visit, parts);
  const bool all_made = own.size() == delivered.size();
  wrong.witness = !by_server && (!all_made || !answer || !same_tag(*answer, tag_of(key, own)));
  for (std::size_t i = 0; i < delivered.size(); ++i) {
    if (i >= own.size() || delivered[i] != own[i]) wrong.firsts.insert(senders[i]);
  }
  return wrong;
}

std::optional<StageCheck::Bytes> StageCheck::sum_again(const Sums& sums, const std::vector<plan::PieceSlice>& slices) {
  StageWorker worker(numbers_.table(), work_.parallel());
  if (numbers_.hold_slices(worker, kOwner, sums.stage, slices) != Status::ok) return std::nullopt;
  for (const std::int64_t sequence : sums.sequences) {
    if (numbers_.add(worker, kOwner, sums.stage, sequence) != Status::ok) return std::nullopt;
  }
  Bytes bytes;
  if (numbers_.sums(worker, kOwner, slices, sums.partial, bytes) != Status::ok) return std::nullopt;
  return bytes;
}

StageCheck::Wrong StageCheck::compare_sums(std::int32_t owner, const std::vector<plan::PieceSlice>& slices,
                                           const SipKey& key, const std::optional<SipTag>& answer, bool by_server) {
  const Sums& sums = sums_.at(owner);
  Wrong wrong;
  wrong.answers.push_back(sums.device);
  const std::vector<Bytes> delivered{numbers_.stored_sums(owner, slices, sums.partial)};
  if (answer && same_tag(*answer, tag_of(key, delivered))) return wrong;
  wrong.made_again = true;
  const std::optional<Bytes> own = sum_again(sums, slices);
  wrong.witness = !by_server && (!own || !answer || !same_tag(*answer, tag_of(key, {*own})));
  if (!own || *own != delivered.front()) wrong.firsts.insert(sums.device);
  return wrong;
}

StageCheck::Wrong StageCheck::compare(const Tasklet& witness, const std::optional<SipTag>& answer) {
  const sched::StageItem& item = witness.item;
  const bool by_server = witness.piece.device == kServerDevice;
  const SipKey key = key_of(witness.id);
  keys_.erase(witness.id);
  if (witness.errand == Errand::witness_sums) return compare_sums(item.first, *item.slices, key, answer, by_server);
  return compare_visit({witness.stage, item.back, item.sequence}, key, answer, by_server);
}

bool StageCheck::completes(const Tasklet& tasklet) const {
  if (tasklet.errand == Errand::send_sums) return true;
  if (tasklet.errand != Errand::forward && tasklet.errand != Errand::backward) return false;
  const auto visit = visits_.find({tasklet.stage, tasklet.errand == Errand::backward, tasklet.item.sequence});
  std::int64_t rows = 0;
  for (const auto& [row, part] : visit->second) rows += part.rows;
  return rows == work_.graph().seq;
}

StageCheck::Wrong StageCheck::audit(const Tasklet& tasklet) {
  if (!completes(tasklet)) return {};
  const sched::StageItem& item = tasklet.item;
  if (tasklet.errand == Errand::send_sums) return compare_sums(item.owner, *item.slices, {}, std::nullopt, true);
  return compare_visit({tasklet.stage, tasklet.errand == Errand::backward, item.sequence}, {}, std::nullopt, true);
}

std::optional<StageCheck::Bytes> StageCheck::own_sums(const Tasklet& tasklet) {
  Sums sums = sums_[tasklet.item.owner];
  sums.stage = tasklet.stage;
  sums.partial = tasklet.item.partial;
  return sum_again(sums, *tasklet.item.slices);
}

bool StageCheck::has_sums(const Tasklet& tasklet, std::span<const std::byte> answer) {
  const std::optional<Bytes> own = own_sums(tasklet);
  return own && std::ranges::equal(*own, answer);
}

bool StageCheck::cannot_be_computed(const Tasklet& tasklet) {
  const sched::StageItem& item = tasklet.item;
  switch (tasklet.errand) {
    case Errand::forward:
    case Errand::backward:
    case Errand::replay:
    case Errand::recompute: {
      const bool back = tasklet.errand == Errand::backward || tasklet.errand == Errand::recompute ||
                        (tasklet.errand == Errand::replay && item.back);
      const VisitId visit{tasklet.stage, back, item.sequence};
      Parts parts;
      if (const auto found = visits_.find(visit); found != visits_.end()) parts = found->second;
      if (tasklet.errand == Errand::recompute) {
        StageWorker& worker = worker_of(tasklet.stage);
        return numbers_.recompute(worker, tasklet.stage, item.sequence) != Status::ok;
      }
      parts.erase(back ? parts.begin() : parts.upper_bound(item.row), back ? parts.lower_bound(item.row) : parts.end());
      parts[item.row] = {.rows = item.rows, .returns_rows = true, .returns_norms = item.returns_norms, .device = {}};
      return make_again(visit, parts).size() < parts.size();
    }
    case Errand::sum: {
      Sums sums;
      sums.stage = tasklet.stage;
      sums.sequences = {item.sequence};
      const auto fails = [&](std::int32_t owner) { return !sum_again(sums, numbers_.slices_of(owner)); };
      return fails(item.owner) || (item.others && std::ranges::any_of(*item.others, fails));
    }
    case Errand::send_sums: return !own_sums(tasklet);
    default: return false;
  }
}

std::set<DeviceId> StageCheck::trace() {
  std::set<DeviceId> wrong;
  for (const auto& [visit, parts] : visits_) {
    if (numbers_.has_answers(std::get<0>(visit), std::get<1>(visit), std::get<2>(visit)))
      wrong.merge(compare_visit(visit, {}, std::nullopt, true).firsts);
  }
  std::vector<StageNumbers::OwnSums> before_added;
  for (const auto& [owner, sums] : sums_) {
    if (sums.slices.empty() || !numbers_.keeps(sums.partial)) continue;
    if (sums.partial || !numbers_.is_added_to(sums.slices)) {
      wrong.merge(compare_sums(owner, sums.slices, {}, std::nullopt, true).firsts);
    } else if (std::optional<Bytes> own = sum_again(sums, sums.slices)) {
      before_added.push_back({owner, sums.slices, std::move(*own)});
    } else {
      wrong.insert(sums.device);
    }
  }
  for (const std::int32_t owner : numbers_.wrong_before_added(before_added)) wrong.insert(sums_.at(owner).device);
  return wrong;
}

}  // namespace cleave::server
