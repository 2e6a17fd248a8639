// Checks of returned blocks: the cheap check, the exact one, and what is kept of both.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <set>

#include "attention_pair.hpp"
#include "blocks.hpp"
#include "cleave/kernels/product_check.hpp"
#include "executor.hpp"
#include "rounded_block.hpp"

namespace cleave::server {

namespace {

using Mode = Verification::Mode;

/// Share of the blocks that are looked at.
double share_of(const Verification& terms) {
  switch (terms.mode) {
    case Mode::off: return std::numeric_limits<double>::quiet_NaN();
    case Mode::all: return 1.0;
    case Mode::sample:
    case Mode::audit: return terms.fraction;
  }
  return 1.0;
}

/// Of this thread: what a busy host adds to real time is not the price of checking.
Seconds processor_time() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return Seconds(static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec));
}

}  // namespace

std::string_view name_of(Mode mode) {
  switch (mode) {
    case Mode::off: return "off";
    case Mode::sample: return "sample";
    case Mode::all: return "all";
    case Mode::audit: return "audit";
  }
  return "";
}

VerificationReport difference(VerificationReport now, const VerificationReport& before) {
  now.blocks -= before.blocks;
  now.checked -= before.checked;
  now.suspected -= before.suspected;
  now.cleared -= before.cleared;
  now.wrong.erase(now.wrong.begin(), now.wrong.begin() + std::ssize(before.wrong));
  now.time -= before.time;
  now.device_time -= before.device_time;
  return now;
}

double slip_probability(const Verification& terms, const VerificationReport& report) {
  std::set<DeviceId> found_out;
  for (const Finding& finding : report.wrong) {
    if (finding.checked) found_out.insert(finding.device);
  }
  return 1.0 - std::pow(share_of(terms), static_cast<double>(found_out.size()));
}

double missed_share(const Verification& terms, std::int64_t blocks, double chance) {
  const double f = share_of(terms);
  if (blocks == 0) return std::isnan(f) ? f : 1.0;
  return std::min(1.0, (1.0 - std::pow(chance, 1.0 / static_cast<double>(blocks))) / f);
}

Verdict Executor::check(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const Verification& terms = options_.verification;
  if (terms.mode == Mode::off) return Verdict::good;
  // The draw of a block and the vectors that it is checked with are functions of the server's secret seed.
  const auto index = static_cast<std::uint64_t>(tasklet.id.value);
  if (terms.mode != Mode::all && draws_.uniform(index) >= terms.fraction) return Verdict::good;
  const Profile::Scope scope(profile_, Phase::verify);
  const Seconds begun = processor_time();
  const Verdict verdict = look_at(tasklet, result);
  ++verification_.checked;
  verification_.time += processor_time() - begun;
  return verdict;
}

Verdict Executor::look_at(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  double ratio = 0;
  if (options_.verification.mode != Mode::audit) {
    ratio = error_ratio(tasklet, result);
    if (ratio <= 1.0) {
      verification_.largest_ratio = std::max(verification_.largest_ratio, ratio);
      return Verdict::good;
    }
    ++verification_.suspected;
  }
  if (equals_own(tasklet, result)) {
    if (options_.verification.mode != Mode::audit) ++verification_.cleared;
    return Verdict::good;
  }
  verification_.wrong.push_back({.device = tasklet.piece.device,
                                 .tasklet = tasklet.id,
                                 .operation = graph_->operation(tasklet.op).name,
                                 .checked = true,
                                 .ratio = ratio});
  return Verdict::wrong;
}

double Executor::error_ratio(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const model::Operation& op = graph_->operation(tasklet.op);
  const Random signs(options_.verification.seed, Purpose::verification,
                     static_cast<std::uint32_t>(1 + tasklet.id.value));
  if (op.kind != model::OpKind::gemm) return attention_error_ratio(tasklet, result, signs);
  const InProgress& state = open(op);
  const GemmBox& box = tasklet.piece.box;
  const GemmShape shape{box.m(), box.n(), box.k()};
  const RoundedBlock a(operand_a(op).from(box.m0, box.k0), box.m(), box.k(), options_.wire);
  const RoundedBlock b(operand_b(op).from(box.k0, box.n0), box.k(), box.n(), options_.wire);
  if (result.header.output != options_.wire) {
    return kernels::check_partial_sums(shape, a.view, b.view, {result.header.output, result.outputs[0].data(), box.n()},
                                       part_of(state.row_exponents, box.m0, box.m()),
                                       part_of(state.column_exponents, box.n0, box.n()), signs);
  }
  if (options_.wire == DType::f32) {
    const auto* c = reinterpret_cast<const float*>(result.outputs[0].data());
    return kernels::check_product(shape, a.view, b.view, {c, box.n()}, DType::f32, signs);
  }
  std::vector<float> c(static_cast<std::size_t>(box.m() * box.n()));
  scatter(result.outputs[0].data(), options_.wire, false, kernels::Rows(c.data(), box.m(), box.n()));
  return kernels::check_product(shape, a.view, b.view, {c.data(), box.n()}, options_.wire, signs);
}

double Executor::attention_error_ratio(const sched::Tasklet& tasklet, const comm::ResultView& result,
                                       const Random& signs) {
  const PairRange& pairs = tasklet.piece.pairs;
  AttentionPair checker(graph_->operation(tasklet.op), *store_, options_.wire);
  double worst = 0;
  for (std::int64_t pair = pairs.pair0; pair < pairs.pair1; ++pair) {
    std::array<const std::byte*, 3> payloads{};
    for (std::size_t i = 0; i < checker.results(); ++i)
      payloads[i] = result.outputs[i].data() + (pair - pairs.pair0) * checker.result_bytes(i);
    worst = std::max(worst, checker.error_ratio(pair, payloads, signs));
  }
  return worst;
}

bool Executor::equals_own(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const model::Operation& op = graph_->operation(tasklet.op);
  if (op.kind == model::OpKind::gemm) {
    std::vector<std::byte> own(result.outputs[0].size());
    return multiply(tasklet, own) == kernels::ProductStatus::ok &&
           std::memcmp(own.data(), result.outputs[0].data(), own.size()) == 0;
  }
  const PairRange& pairs = tasklet.piece.pairs;
  AttentionPair computer(op, *store_, options_.wire);
  for (std::int64_t pair = pairs.pair0; pair < pairs.pair1; ++pair) {
    computer.compute(pair);
    for (std::size_t i = 0; i < computer.results(); ++i) {
      if (!computer.equals(i, result.outputs[i].data() + (pair - pairs.pair0) * computer.result_bytes(i))) return false;
    }
  }
  return true;
}

}  // namespace cleave::server
