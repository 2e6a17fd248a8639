// Runs are few, so each operation walks all of them.
#include "cleave/pieces/column_set.hpp"

#include <algorithm>

namespace cleave::pieces {

bool ColumnSet::add(Columns run) {
  if (run.count() <= 0) return false;
  const bool known =
      std::ranges::any_of(runs_, [&](const Columns& r) { return r.begin <= run.begin && run.end <= r.end; });
  if (known) return false;
  std::erase_if(runs_, [&](const Columns& r) {
    if (r.end < run.begin || run.end < r.begin) return false;
    run = {std::min(run.begin, r.begin), std::max(run.end, r.end)};
    return true;
  });
  runs_.insert(std::ranges::lower_bound(runs_, run.begin, {}, &Columns::begin), run);
  return true;
}

bool ColumnSet::add(const ColumnSet& other) {
  bool added = false;
  for (const Columns& run : other.runs_) added = add(run) || added;
  return added;
}

std::int64_t ColumnSet::count() const {
  std::int64_t sum = 0;
  for (const Columns& run : runs_) sum += run.count();
  return sum;
}

ColumnSet ColumnSet::within(Columns range, std::int64_t origin) const {
  ColumnSet part;
  for (const Columns& run : runs_)
    part.add(Columns{std::max(run.begin, range.begin) - origin, std::min(run.end, range.end) - origin});
  return part;
}

ColumnSet ColumnSet::moved(std::int64_t by) const {
  ColumnSet set;
  for (const Columns& run : runs_) set.add(Columns{run.begin + by, run.end + by});
  return set;
}

ColumnSet ColumnSet::groups(std::int64_t from, std::int64_t to) const {
  ColumnSet set;
  for (const Columns& run : runs_) set.add(Columns{run.begin / from * to, (run.end + from - 1) / from * to});
  return set;
}

}  // namespace cleave::pieces
