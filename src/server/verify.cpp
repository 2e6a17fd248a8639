// Checks of returned blocks: the cheap check, the exact one, and what is kept of both.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "attention_pair.hpp"
#include "blocks.hpp"
#include "cleave/base/error.hpp"
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

/// Rows that are looked at together.
std::int64_t checked_band(std::int64_t cols) {
  constexpr std::int64_t kLeast = 8;
  return std::max(kLeast, rows_of_band(cols));
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

/// Charges the time until its end to verification: processor time to the report, real time to the profile.
class Charge {
 public:
  Charge(Profile& profile, Seconds& total) : scope_(profile, Phase::verify), total_(total), begun_(processor_time()) {}
  ~Charge() { total_ += processor_time() - begun_; }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  Profile::Scope scope_;
  Seconds& total_;
  Seconds begun_;
};

/// In place of a ratio: a number that no ratio is.
constexpr double kNotRepresentable = -1;

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

// The draw of a block and the vectors that it is checked with are functions of the server's secret seed.
bool Executor::is_drawn(const sched::Tasklet& tasklet) const {
  const Verification& terms = options_.verification;
  if (terms.mode == Mode::off || terms.mode == Mode::all) return terms.mode == Mode::all;
  return draws_.uniform(static_cast<std::uint64_t>(tasklet.id.value)) < terms.fraction;
}

Random Executor::signs_of(const sched::Tasklet& tasklet) const {
  return {options_.verification.seed, Purpose::verification, static_cast<std::uint32_t>(1 + tasklet.id.value)};
}

// B goes first, because A is multiplied by B x, depth by depth where both come in parts of K blocks. Each band is
// looked at while it is in the cache that it was gathered through: from memory, reading the operands again would be
// most of the price of checking.
void Executor::gather_operands(const sched::Tasklet& tasklet, kernels::ConstMatrix a, kernels::ConstMatrix b,
                               comm::TaskDraft& draft) {
  const GemmBox& box = tasklet.piece.box;
  const comm::Header& header = draft.header;
  const bool begins = header.part.first == 0, by_depth = header.part.of == comm::PartOf::k_blocks;
  const std::int64_t k0 = header.k0(), depth = header.depth();
  kernels::ProductCheck* check = nullptr;
  if (options_.verification.mode != Mode::audit && is_drawn(tasklet)) {
    auto& checks = in_progress_.at(tasklet.op).checks;
    if (begins) {
      const Charge charge(profile_, verification_.time);
      checks.insert_or_assign(tasklet.id.value,
                              kernels::ProductCheck({box.m(), box.n(), box.k()}, options_.wire, signs_of(tasklet)));
    }
    check = &checks.at(tasklet.id.value);
  }
  const auto in_bands = [&](kernels::ConstMatrix from, std::int64_t rows, std::int64_t cols, std::int64_t before,
                            std::byte* to, auto take) {
    const Lines lines = lines_of(from, rows, cols);
    const auto stored = lines.are_columns ? kernels::Stored::by_columns : kernels::Stored::by_rows;
    if (!check) return server::gather(parallel_, lines.matrix, lines.count, lines.length, options_.wire, to);
    const std::int64_t band = checked_band(lines.length);
    for (std::int64_t i = 0; i < lines.count; i += band) {
      const std::int64_t count = std::min(band, lines.count - i);
      std::byte* first = to + i * lines.length * size_of(options_.wire);
      server::gather(lines.matrix.from(i, 0), count, lines.length, options_.wire, first);
      const Charge charge(profile_, verification_.time);
      (check->*take)(stored, first, before + i, count);
    }
  };
  if (header.columns == comm::Columns::kept) {
    if (check && begins) {  // what the device has of it is looked at once more
      KeptVector<std::byte> columns(static_cast<std::size_t>(box.k() * box.n() * size_of(options_.wire)));
      in_bands(b, box.k(), box.n(), 0, columns.data(), &kernels::ProductCheck::take_b);
    }
  } else if (begins || by_depth) {
    in_bands(b.from(k0, 0), depth, box.n(), k0, draft.operands[1].data(), &kernels::ProductCheck::take_b);
  }
  const std::int64_t row = by_depth ? 0 : header.part.first;
  in_bands(a.from(row, k0), header.rows(), depth, row + k0, draft.operands[0].data(), &kernels::ProductCheck::take_a);
}

// An honest device refuses what is not finite, so that is refused whatever verification looks at: one NaN that nobody
// drew would end the training. Where a product is to be checked, both are done band by band, in one pass through
// memory.
double Executor::error_ratio_of_product(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const model::Operation& op = graph_->operation(tasklet.op);
  InProgress& state = open(op);
  const GemmBox& box = tasklet.piece.box;
  const DType type = result.header.output;
  const auto found = state.checks.find(tasklet.id.value);
  CLEAVE_ASSERT(found != state.checks.end(), "tasklet {} was not packed", tasklet.id.value);
  const kernels::ProductCheck check = std::move(found->second);
  state.checks.erase(found);
  const auto rows = part_of(state.row_exponents, box.m0, box.m()),
             columns = part_of(state.column_exponents, box.n0, box.n());
  const std::int64_t band = checked_band(box.n());
  double worst = 0;
  for (std::int64_t i = 0; i < box.m(); i += band) {
    const std::int64_t count = std::min(band, box.m() - i);
    const std::byte* first = result.outputs[0].data() + i * box.n() * size_of(type);
    if (!kernels::all_representable(type, first, count * box.n())) return kNotRepresentable;
    const Charge charge(profile_, verification_.time);
    worst = std::max(worst, type == options_.wire ? check.ratio_of(type, first, i, count)
                                                  : check.ratio_of({type, first, box.n()}, i, count, rows, columns));
  }
  return worst;
}

Verdict Executor::check(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const bool drawn = is_drawn(tasklet), cheap = drawn && options_.verification.mode != Mode::audit;
  double ratio = 0;
  if (cheap && graph_->operation(tasklet.op).kind == model::OpKind::gemm) {
    ratio = error_ratio_of_product(tasklet, result);
  } else if (!is_representable(parallel_, result)) {
    ratio = kNotRepresentable;
  } else if (cheap) {
    const Charge charge(profile_, verification_.time);
    ratio = attention_error_ratio(tasklet, result);
  }
  if (ratio == kNotRepresentable) { return accuse(tasklet, false, 0); }
  if (!drawn) return Verdict::good;
  ++verification_.checked;
  if (cheap && ratio <= 1.0) {
    verification_.largest_ratio = std::max(verification_.largest_ratio, ratio);
    return Verdict::good;
  }
  const Charge charge(profile_, verification_.time);
  const Verdict verdict = equals_own(tasklet, result) ? Verdict::good : Verdict::wrong;
  if (cheap) {
    ++verification_.suspected;
    verification_.cleared += verdict == Verdict::good ? 1 : 0;
  }
  return verdict == Verdict::wrong ? accuse(tasklet, true, ratio) : verdict;
}

Verdict Executor::accuse(const sched::Tasklet& tasklet, bool checked, double ratio) {
  verification_.wrong.push_back({.device = tasklet.piece.device,
                                 .tasklet = tasklet.id,
                                 .operation = graph_->operation(tasklet.op).name,
                                 .checked = checked,
                                 .ratio = ratio});
  return Verdict::wrong;
}

double Executor::attention_error_ratio(const sched::Tasklet& tasklet, const comm::ResultView& result) {
  const PairRange& pairs = tasklet.piece.pairs;
  const Random signs = signs_of(tasklet);
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
    KeptVector<std::byte> own(result.outputs[0].size());
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
