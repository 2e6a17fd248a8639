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
  const std::int64_t cell = size_of(partial_sum_type(header.wire));
  for (ResultBand& band : bands_) {
    band.sums.resize(static_cast<std::size_t>(band.count * task_.gemm.n * cell));
    if (!add(part, band, band.sums.data(), a, b, parallel)) return answer(comm::Reason::non_finite);
    if (!last) continue;
    comm::ResultDraft rows = begin_rows(band);
    if (!finish(band, rows.outputs[0], parallel, scratch)) return answer(comm::Reason::non_finite);
    band.sums = {};
    answer(std::move(rows));
  }
  if (!last) answer(comm::begin_result(comm::result_header(header)));
  failed_ = false;
}

bool StreamedProduct::add(const comm::TaskView& part, const ResultBand& band, std::byte* sums, kernels::ConstMatrix a,
                          kernels::ConstMatrix b, kernels::Parallel& parallel) const {
  const comm::Header& header = part.header;
  const kernels::SumRule rule{std::span(row_exponents_).subspan(static_cast<std::size_t>(band.first)),
                              column_exponents_,
                              {task_.gemm.seq, (task_.gemm.first_block + header.part.first) * kBlockK}};
  return kernels::multiply_run(parallel, {band.count, task_.gemm.n, header.depth()}, a.from(band.first, 0), b, rule,
                               {partial_sum_type(header.wire), sums, task_.gemm.n},
                               header.part.first > 0 ? kernels::Accumulate::yes : kernels::Accumulate::no) ==
         kernels::ProductStatus::ok;
}

comm::ResultDraft StreamedProduct::begin_rows(const ResultBand& band) const {
  comm::Header header = comm::result_header(task_);
  header.part = {};
  if (bands_.size() > 1) header.part = {.of = comm::PartOf::rows, .first = band.first, .count = band.count};
  return comm::begin_result(header);
}

bool StreamedProduct::finish(const ResultBand& band, std::span<std::byte> rows, kernels::Parallel& parallel,
                             Scratch& scratch) const {
  if (!task_.gemm.whole_depth()) {
    std::memcpy(rows.data(), band.sums.data(), rows.size());
    return true;
  }
  float* c = target(task_.output, rows, scratch.c);
  const kernels::ConstPartialSums sums{partial_sum_type(task_.wire), band.sums.data(), task_.gemm.n};
  const auto exponents = std::span(row_exponents_).subspan(static_cast<std::size_t>(band.first));
  if (kernels::finish_partial_sums(parallel, band.count, task_.gemm.n, sums, exponents, column_exponents_,
                                   kernels::Matrix(c, task_.gemm.n)) != kernels::ProductStatus::ok) {
    return false;
  }
  narrow_into(task_.output, c, rows);
  return true;
}

}  // namespace cleave::device
