// Sums of owners are finished to gradients. Partial sums of several owners are read in the messages that brought them.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "blocks.hpp"
#include "cleave/base/error.hpp"
#include "cleave/kernels/product_check.hpp"
#include "cleave/kernels/token_sums.hpp"
#include "cleave/kernels/wire.hpp"
#include "stages/stage_numbers.hpp"

namespace cleave::server {

namespace {

using pieces::Columns;
using pieces::Region;

// Whether a part has some elements of `region`, but not exactly its elements.
bool overlaps(const Region& region, std::span<const StageNumbers::PartialSum> parts) {
  const auto meet = [](const Columns& a, const Columns& b) { return a.begin < b.end && b.begin < a.end; };
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const Region& other = parts[k].region;
    const bool equal = other.rows == region.rows && other.cols == region.cols;
    if (!equal && meet(other.rows, region.rows) && meet(other.cols, region.cols)) return true;
  }
  return false;
}

}  // namespace

std::int32_t StageNumbers::rows_of_sums(const sched::StageItem& item) const {
  std::int64_t rows = 0;
  for (const Region& region : pieces::regions_of(*table_, ranges_of(*item.slices))) rows += region.rows.count();
  return static_cast<std::int32_t>(rows);
}

bool StageNumbers::may_be_sums(std::span<const std::byte> sums, bool in_64_bits) {
  const DType type = in_64_bits ? DType::i64 : DType::i32;
  return kernels::all_representable(type, sums.data(), std::ssize(sums) / size_of(type));
}

// The usual case: owners have sums of the same regions. These are added band by band, so that a band stays in the
// cache.
void StageNumbers::finish_sums(std::span<const PartialSum> parts) {
  constexpr std::int64_t kSumsTogether = 8192;
  const kernels::Rows gradient = whole(gradient_of(parts.front().region.parameter));
  std::vector<bool> done(parts.size(), false);
  bool good = true;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (done[i]) continue;
    const Region& region = parts[i].region;
    std::vector<const std::int64_t*> same;
    for (std::size_t k = i; k < parts.size(); ++k) {
      const Region& other = parts[k].region;
      if (done[k] || !(other.rows == region.rows) || !(other.cols == region.cols)) continue;
      done[k] = true;
      same.push_back(parts[k].sums);
    }
    if (overlaps(region, parts)) return finish_unlike_sums(parts);
    const std::int64_t rows = region.rows.count(), cols = region.cols.count();
    std::atomic<bool> bad{false};
    work_.parallel().for_chunks(
        rows, std::max<std::int64_t>(1, kSumsTogether / cols), [&](std::int64_t begin, std::int64_t end) {
          const auto elements = static_cast<std::size_t>((end - begin) * cols);
          thread_local KeptVector<std::int64_t> sum;
          sum.assign(same[0] + begin * cols, same[0] + begin * cols + static_cast<std::ptrdiff_t>(elements));
          for (std::size_t k = 1; k < same.size(); ++k)
            kernels::add_partial_sums(work_.parallel(), end - begin, cols, {DType::i64, same[k] + begin * cols, cols},
                                      {DType::i64, sum.data(), cols});
          if (kernels::finish_token_products(work_.parallel(), end - begin, cols, {DType::i64, sum.data(), cols},
                                             {gradient.row(region.rows.begin + begin) + region.cols.begin,
                                              gradient.ld}) != kernels::ProductStatus::ok)
            bad = true;
        });
    good = good && !bad;
  }
  if (!good) throw CheckFailure("a gradient is not finite: the training has diverged");
}

// Regions overlap without being equal, since stand-ins for a lost owner may cut its slices in other ways.
void StageNumbers::finish_unlike_sums(std::span<const PartialSum> parts) {
  const kernels::Rows gradient = whole(gradient_of(parts.front().region.parameter));
  KeptVector<std::int64_t> total(static_cast<std::size_t>(gradient.rows * gradient.cols));
  const auto at = [&](const Region& region) {
    return total.data() + region.rows.begin * gradient.cols + region.cols.begin;
  };
  for (const PartialSum& part : parts) {
    const std::int64_t cols = part.region.cols.count();
    kernels::add_partial_sums(work_.parallel(), part.region.rows.count(), cols, {DType::i64, part.sums, cols},
                              {DType::i64, at(part.region), gradient.cols});
  }
  for (const PartialSum& part : parts) {
    const Region& region = part.region;
    if (kernels::finish_token_products(
            work_.parallel(), region.rows.count(), region.cols.count(), {DType::i64, at(region), gradient.cols},
            {gradient.row(region.rows.begin) + region.cols.begin, gradient.ld}) != kernels::ProductStatus::ok)
      throw CheckFailure("a gradient is not finite: the training has diverged");
  }
}

// Everything that adds to the gradient of a parameter has come: the gradient is finished.
void StageNumbers::complete(TensorId parameter) {
  for (auto& [op, parts] : partial_) {
    if (parts.empty() || parts.front().region.parameter != parameter) continue;
    finish_sums(parts);
    open_sums_ -= std::ssize(parts);
    parts.clear();
  }
  if (open_sums_ == 0) {
    frames_.clear();
    made_here_.clear();
  }
  for (auto& [op, sums] : sums_) {
    if (sums.regions.empty() || sums.regions.front().parameter != parameter) continue;
    const kernels::Rows gradient = whole(gradient_of(parameter));
    for (const Region& region : sums.regions) {
      const kernels::Rows part =
          gradient.band(region.rows.begin, region.rows.end).columns(region.cols.begin, region.cols.end);
      if (sums.total.finish(work_.parallel(), part_of(region), {part.data, part.ld}) != kernels::ProductStatus::ok)
        throw CheckFailure("a gradient is not finite: the training has diverged");
      kernels::round_gradient(work_.parallel(), work_.unit(), part);
    }
    sums.regions.clear();
  }
  for (std::int32_t s = 0; s < std::ssize(stages_); ++s) {
    if (tiled_.contains(s)) continue;  // in tiles the gradients of norms are made whole
    const Stage& stage = at(s);
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
    if (adds) {
      added_[parameter].push_back(op);
      kernels_.run(op);
    }
    return adds;
  });
}

bool StageNumbers::is_added_to(const std::vector<plan::PieceSlice>& slices) const {
  return std::ranges::any_of(pieces::regions_of(*table_, ranges_of(slices)),
                             [&](const Region& region) { return added_.contains(region.parameter); });
}

std::set<std::int32_t> StageNumbers::wrong_before_added(std::span<const OwnSums> all) {
  std::set<std::int32_t> wrong;
  const float scale = work_.unit().scale_of_sent();
  for (const auto& [parameter, added] : added_) {
    const kernels::Rows gradient = whole(gradient_of(parameter));
    const auto band_of = [&](const Region& region) {
      return gradient.band(region.rows.begin, region.rows.end).columns(region.cols.begin, region.cols.end);
    };
    const auto width = static_cast<std::size_t>(gradient.cols);
    KeptVector<float> stored;
    for (std::int64_t row = 0; row < gradient.rows; ++row)
      stored.insert(stored.end(), gradient.row(row), gradient.row(row) + width);
    std::vector<std::pair<std::int32_t, Region>> regions;
    for (const OwnSums& own : all) {
      const std::byte* next = own.bytes.data();
      for (const Region& region : pieces::regions_of(*table_, ranges_of(own.slices))) {
        if (region.parameter == parameter) {
          kernels::from_wire(wire_, next, band_of(region));
          if (scale != 1) scale_rows(band_of(region), scale);
          regions.emplace_back(own.owner, region);
        }
        next += region.elements() * element_;
      }
    }
    try {
      for (const model::Operation& op : added) kernels_.run(op);
    } catch (const CheckFailure&) { regions.clear(); }  // who brought that about is no owner
    for (const auto& [owner, region] : regions) {
      for (std::int64_t row = region.rows.begin; row < region.rows.end; ++row) {
        const float* const was = stored.data() + row * gradient.cols + region.cols.begin;
        if (std::memcmp(gradient.row(row) + region.cols.begin, was,
                        static_cast<std::size_t>(region.cols.count()) * sizeof(float)) != 0)
          wrong.insert(owner);
      }
    }
    for (std::int64_t row = 0; row < gradient.rows; ++row)
      std::copy_n(stored.data() + row * gradient.cols, width, gradient.row(row));
  }
  return wrong;
}

}  // namespace cleave::server
