// Draws, checks and verdicts.
#include "verifier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <ctime>
#include <utility>

#include "attention_pair.hpp"
#include "blocks.hpp"
#include "cleave/base/error.hpp"
#include "cleave/kernels/wire.hpp"
#include "rounded_block.hpp"

namespace cleave::server {

namespace {

using Mode = VerifyMode;

/// Of this thread: what a busy host adds to real time is not the price of checking.
Seconds processor_time() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return Seconds(static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec));
}

bool is_representable(kernels::Parallel& parallel, const comm::ResultView& result) {
  const DType type = result.header.output;
  std::atomic<bool> good{true};
  for (const std::span<const std::byte> output : result.outputs) {
    parallel.for_chunks(static_cast<std::int64_t>(output.size()) / size_of(type), kBandElements,
                        [&](std::int64_t begin, std::int64_t end) {
                          if (!kernels::all_representable(type, output.data() + begin * size_of(type), end - begin))
                            good = false;
                        });
  }
  return good;
}

/// In place of a ratio: a number that no ratio is.
constexpr double kNotRepresentable = -1;

}  // namespace

std::int64_t checked_band(std::int64_t cols) {
  constexpr std::int64_t kLeast = 8;
  return std::max(kLeast, rows_of_band(cols));
}

Verifier::Charge::Charge(Verifier& verifier)
    : scope_(verifier.work_.profile(), Phase::verify), total_(verifier.report_.time), begun_(processor_time()) {}
Verifier::Charge::~Charge() { total_ += processor_time() - begun_; }

Verifier::Verifier(Workspace& work, BlockComputer& computer, const Verification& terms)
    : work_(work), computer_(computer), terms_(terms), draws_(terms.seed, Purpose::verification) {}

// The draw of a block and the vectors that it is checked with are functions of the server's secret seed.
bool Verifier::is_drawn(const sched::Tasklet& tasklet) const {
  if (every_block_) return true;
  if (terms_.mode == Mode::off || terms_.mode == Mode::all) return terms_.mode == Mode::all;
  if (pairs()) return tasklet.witnessed;
  return draws_.uniform(static_cast<std::uint64_t>(tasklet.id.value)) < terms_.fraction;
}

Random Verifier::signs_of(const sched::Tasklet& tasklet) const {
  return {terms_.seed, Purpose::verification, static_cast<std::uint32_t>(1 + tasklet.id.value)};
}

void Verifier::begin_step(bool every_block) {
  every_block_ = every_block;
  checks_.clear();
  unchecked_.clear();
  spoiled_.clear();
  open_pairs_.clear();
}
void Verifier::retire(OpId op) { checks_.erase(op); }

kernels::ProductCheck* Verifier::check_of(const sched::Tasklet& tasklet, bool begins) {
  if (recomputes() || leaves_to_witnesses() || !is_drawn(tasklet)) return nullptr;
  auto& checks = checks_[tasklet.op];
  if (begins) {
    const GemmBox& box = tasklet.piece.box;
    const Charge charge(*this);
    checks.insert_or_assign(tasklet.id.value,
                            kernels::ProductCheck({box.m(), box.n(), box.k()}, work_.wire(), signs_of(tasklet)));
  }
  return &checks.at(tasklet.id.value);
}

// Honest devices refuse values that are not finite. So every block with such a value is refused, also one that is not
// checked: a single NaN would end the training. A block that is checked is read once, band by band, for both
// purposes.
double Verifier::error_ratio_of_product(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const InProgress& state = work_.open(work_.operation(tasklet.op));
  const GemmBox& box = tasklet.piece.box;
  const DType type = result.header.output;
  auto& checks = checks_[tasklet.op];
  const auto found = checks.find(tasklet.id.value);
  CLEAVE_ASSERT(found != checks.end(), "tasklet {} was not packed", tasklet.id.value);
  const kernels::ProductCheck check = std::move(found->second);
  checks.erase(found);
  const auto columns = part_of(state.column_exponents, box.n0, box.n());
  const kernels::TokenRun tokens = tokens_of(result.header);
  const std::int64_t products = state.in_units ? tokens.products(box.k()) : 0;
  kernels::ProductCheck::InUnits in_units;
  KeptVector<std::int16_t> wide;  // of sums that are sent in 64 bits though the wire has 16
  auto rows = part_of(state.row_exponents, box.m0, box.m());
  if (state.in_units && type != partial_sum_type(work_.wire())) {
    wide.assign(rows.size(), tokens.unit.exponents(type).row);
    rows = wide;
  }
  if (state.in_units && work_.wire() != DType::f32) {
    in_units = {.scale = std::ldexp(1.0, tokens.unit.as_sent() - tokens.unit.of_product()),
                .unit = std::ldexp(1.0, -tokens.unit.of_product()),
                .products = products};
  }
  const std::int64_t band = checked_band(box.n());
  double worst = 0;
  for (std::int64_t i = 0; i < box.m(); i += band) {
    const std::int64_t count = std::min(band, box.m() - i);
    const std::byte* first = result.outputs[0].data() + i * box.n() * size_of(type);
    if (!kernels::all_representable(type, first, count * box.n())) return kNotRepresentable;
    const Charge charge(*this);
    worst = std::max(worst, type == work_.wire()
                                ? check.ratio_of(type, first, i, count, in_units)
                                : check.ratio_of({type, first, box.n()}, i, count, rows, columns, products));
  }
  return worst;
}

Verdict Verifier::check(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const bool drawn = is_drawn(tasklet) && !leaves_to_witnesses(), cheap = drawn && !recomputes();
  double ratio = 0;
  if (cheap && work_.operation(tasklet.op).kind == model::OpKind::gemm) {
    ratio = error_ratio_of_product(tasklet, result);
  } else if (!is_representable(work_.parallel(), result)) {
    ratio = kNotRepresentable;
  } else if (cheap) {
    const Charge charge(*this);
    ratio = attention_error_ratio(tasklet, result);
  }
  if (ratio == kNotRepresentable) {
    const Charge charge(*this);
    const bool may_be_any = work_.open(work_.operation(tasklet.op)).may_be_any(result.header.output);
    return may_be_any && computer_.equals(tasklet, result) ? Verdict::good : accuse(tasklet, false, 0);
  }
  if (!drawn) return Verdict::good;
  ++report_.checked;
  if (cheap && ratio <= 1.0) {
    report_.largest_ratio = std::max(report_.largest_ratio, ratio);
    return Verdict::good;
  }
  const Charge charge(*this);
  const Verdict verdict = computer_.equals(tasklet, result) ? Verdict::good : Verdict::wrong;
  if (cheap) {
    ++report_.suspected;
    report_.cleared += verdict == Verdict::good ? 1 : 0;
  }
  return verdict == Verdict::wrong ? accuse(tasklet, true, ratio) : verdict;
}

// What its device returned unchecked until now counts as spoiled.
Verdict Verifier::record(Finding finding) {
  if (const auto found = unchecked_.find(finding.device); found != unchecked_.end()) {
    spoiled_.push_back({.device = found->first, .blocks = found->second});
    unchecked_.erase(found);
  }
  report_.wrong.push_back(std::move(finding));
  return Verdict::wrong;
}

Verdict Verifier::accuse(const sched::Tasklet& tasklet, bool checked, double ratio) {
  return record({.device = tasklet.piece.device,
                 .tasklet = tasklet.id,
                 .operation = work_.operation(tasklet.op).name,
                 .checked = checked,
                 .ratio = ratio});
}

void Verifier::looked_at(const std::vector<DeviceId>& answers, const std::set<DeviceId>& wrong) {
  if (audits()) ++report_.checked;
  for (const DeviceId device : answers) {
    if (wrong.contains(device)) continue;
    const auto found = unchecked_.find(device);
    if (found != unchecked_.end() && --found->second == 0) unchecked_.erase(found);
  }
}

Verdict Verifier::accuse_in_stages(DeviceId device, TaskletId tasklet, std::string what, bool digest) {
  return record(
      {.device = device, .tasklet = tasklet, .operation = std::move(what), .checked = !digest, .digest = digest});
}

void Verifier::keep_digest(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const Charge charge(*this);
  const SipKey key = secret_key();
  open_pairs_.insert_or_assign(tasklet.id, OpenPair{tasklet, key, comm::digest_of(key, result.outputs)});
}

const Verifier::OpenPair& Verifier::pair_of(const sched::Tasklet& witness) const {
  const auto found = open_pairs_.find(witness.witness_of);
  CLEAVE_ASSERT(found != open_pairs_.end(), "tasklet {} has no pair", witness.id.value);
  return found->second;
}

PairVerdict Verifier::compare(const sched::Tasklet& witness, const std::optional<SipTag>& answer) {
  const OpenPair pair = pair_of(witness);
  open_pairs_.erase(witness.witness_of);
  const bool by_server = witness.piece.device == kServerDevice;
  ++report_.checked;
  bool first_is_right = answer && same_tag(*answer, pair.digest), second_is_right = first_is_right;
  const bool by_own = !first_is_right;  // what two devices agree on may be a lie of both
  if (by_own) {
    const Charge charge(*this);
    const std::optional<SipTag> own = computer_.digest(pair.tasklet, pair.key);
    first_is_right = own && same_tag(*own, pair.digest);
    second_is_right = by_server || (own && answer && same_tag(*own, *answer));
    if (!by_server) ++report_.suspected;
    if (!by_server && first_is_right) ++report_.cleared;
  }
  if (first_is_right && by_own) {
    const auto found = unchecked_.find(pair.tasklet.piece.device);
    if (found != unchecked_.end() && --found->second == 0) unchecked_.erase(found);
  }
  PairVerdict verdict;
  if (!first_is_right) {
    verdict.wrong = pair.tasklet.piece.device;
    (void)accuse(pair.tasklet, true, 0);
  }
  if (!second_is_right) {
    (verdict.wrong.valid() ? verdict.also : verdict.wrong) = witness.piece.device;
    (void)accuse(witness, true, 0);
    report_.wrong.back().digest = true;
  }
  return verdict;
}

double Verifier::attention_error_ratio(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const PairRange& pairs = tasklet.piece.pairs;
  const Random signs = signs_of(tasklet);
  AttentionPair checker(work_.operation(tasklet.op), work_.tensors(), work_.wire());
  double worst = 0;
  for (std::int64_t pair = pairs.pair0; pair < pairs.pair1; ++pair) {
    std::array<const std::byte*, 3> payloads{};
    for (std::size_t i = 0; i < checker.results(); ++i)
      payloads[i] = result.outputs[i].data() + (pair - pairs.pair0) * checker.result_bytes(i);
    worst = std::max(worst, checker.error_ratio(pair, payloads, signs));
  }
  return worst;
}

}  // namespace cleave::server
