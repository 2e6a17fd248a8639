// Sums over parts of K blocks, band by band.
#include "streamed_product.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cleave/kernels/gemm.hpp"
#include "cleave/kernels/product_check.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "wire_buffers.hpp"

namespace cleave::device {

namespace {

/// Rows of a band, at most: those of the kernels' own tiles, for which B is prepared anew in any case.
constexpr std::int64_t kBandRows = 512;

}  // namespace

StreamedProduct::StreamedProduct(const comm::TaskView& first)
    : task_(first.header),
      row_exponents_(first.row_exponents.begin(), first.row_exponents.end()),
      column_exponents_(first.column_exponents.begin(), first.column_exponents.end()) {
  const std::int64_t m = task_.gemm.m, bands = (m + kBandRows - 1) / kBandRows, rows = (m + bands - 1) / bands;
  for (std::int64_t i = 0; i < m; i += rows) bands_.push_back({.first = i, .count = std::min(rows, m - i)});
}

void StreamedProduct::take(const comm::TaskView& part, kernels::Parallel& parallel, Scratch& scratch,
                           const Answer& answer) {
  if (std::exchange(failed_, true)) return;  // until this part has gone well
  const comm::Header& header = part.header;
  const bool last = header.part.end() == header.part_units();
  const auto a = kernels::ConstMatrix(widened(header.wire, part.operands[0], scratch.a), task_.gemm.m).transposed();
  const kernels::ConstMatrix b(widened(header.wire, part.operands[1], scratch.b), task_.gemm.n);
  for (ResultBand& band : bands_) {
    if (!add(part, band, a, b, parallel)) return answer(comm::Reason::non_finite);
    if (!last) continue;
    comm::ResultDraft rows = begin_rows(band);
    if (const comm::Reason reason = finish(band, rows, parallel, scratch); reason != comm::Reason::none)
      return answer(reason);
    band.sums = {};
    band.unit_sums = {};
    answer(std::move(rows));
  }
  if (!last) answer(comm::begin_result(comm::result_header(header)));
  failed_ = false;
}

bool StreamedProduct::add(const comm::TaskView& part, ResultBand& band, kernels::ConstMatrix a, kernels::ConstMatrix b,
                          kernels::Parallel& parallel) const {
  const comm::Header& header = part.header;
  kernels::SumRule rule{std::span(row_exponents_).subspan(static_cast<std::size_t>(band.first)), column_exponents_,
                        tokens_of(task_)};
  rule.tokens.first += header.part.first * kBlockK;
  const bool begins = header.part.first == 0;
  if (kernels::TokenSumMatrix::sums(rule)) {
    if (begins) band.unit_sums = kernels::TokenSumMatrix(band.count, task_.gemm.n, rule.tokens.unit);
    return band.unit_sums.add_product(parallel, header.depth(), a.from(band.first, 0), b, rule.tokens) ==
           kernels::ProductStatus::ok;
  }
  const DType type = partial_sum_type(header.wire);
  band.sums.resize(static_cast<std::size_t>(band.count * task_.gemm.n * size_of(type)));
  return kernels::multiply_run(parallel, {band.count, task_.gemm.n, header.depth()}, a.from(band.first, 0), b, rule,
                               {type, band.sums.data(), task_.gemm.n},
                               begins ? kernels::Accumulate::no : kernels::Accumulate::yes) ==
         kernels::ProductStatus::ok;
}

comm::ResultDraft StreamedProduct::begin_rows(const ResultBand& band) const {
  comm::Header header = comm::result_header(task_);
  header.part = {};
  if (bands_.size() > 1) header.part = {.of = comm::PartOf::rows, .first = band.first, .count = band.count};
  return comm::begin_result(header);
}

comm::Reason StreamedProduct::finish(const ResultBand& band, comm::ResultDraft& rows, kernels::Parallel& parallel,
                                     Scratch& scratch) const {
  const kernels::TokenSumMatrix& in_units = band.unit_sums;
  if (!task_.gemm.whole_depth()) {
    if (in_units.empty()) {
      std::memcpy(rows.outputs[0].data(), band.sums.data(), rows.outputs[0].size());
      return comm::Reason::none;
    }
    if (!make_room(rows, in_units.partial_type(in_units.whole()))) return comm::Reason::memory;
    in_units.partial_sums(parallel, in_units.whole(), {rows.header.output, rows.outputs[0].data(), task_.gemm.n});
    return comm::Reason::none;
  }
  float* c = target(task_.output, rows.outputs[0], scratch.c);
  const kernels::Matrix result(c, task_.gemm.n);
  kernels::ProductStatus status = kernels::ProductStatus::ok;
  if (in_units.empty()) {
    const kernels::ConstPartialSums sums{partial_sum_type(task_.wire), band.sums.data(), task_.gemm.n};
    const auto exponents = std::span(row_exponents_).subspan(static_cast<std::size_t>(band.first));
    status =
        kernels::finish_partial_sums(parallel, band.count, task_.gemm.n, sums, exponents, column_exponents_, result);
  } else {
    status = in_units.finish(parallel, in_units.whole(), result);
  }
  narrow_into(task_.output, c, rows.outputs[0]);
  return status == kernels::ProductStatus::ok ? comm::Reason::none : comm::Reason::non_finite;
}

}  // namespace cleave::device
