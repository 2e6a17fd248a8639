// ColumnSet: which columns of a tensor are wanted.
#pragma once

#include <cstdint>
#include <vector>

namespace cleave::pieces {

/// A half-open run of columns.
struct Columns {
  std::int64_t begin = 0, end = 0;
  bool operator==(const Columns&) const = default;
  [[nodiscard]] std::int64_t count() const { return end - begin; }
};

/// A set of columns, kept as ascending runs that neither overlap nor touch.
class ColumnSet {
 public:
  ColumnSet() = default;
  ColumnSet(Columns run) { add(run); }  // NOLINT(google-explicit-constructor)

  /// Adds a run, or all runs of a set. Returns whether a column was new.
  bool add(Columns run);
  bool add(const ColumnSet& other);
  [[nodiscard]] bool empty() const { return runs_.empty(); }
  [[nodiscard]] std::int64_t count() const;
  [[nodiscard]] const std::vector<Columns>& runs() const { return runs_; }
  bool operator==(const ColumnSet&) const = default;

  /// The columns within `range`, renumbered: column c becomes c - origin.
  [[nodiscard]] ColumnSet within(Columns range, std::int64_t origin) const;
  /// The set with each column c renumbered to c + by.
  [[nodiscard]] ColumnSet moved(std::int64_t by) const;
  /// Every group of `from` columns that contains a column of the set, as the group of `to` columns with the same
  /// number. Example: query heads of 4 * 64 columns from key heads of 64, {[70, 80)}.groups(64, 256) is {[256, 512)}.
  [[nodiscard]] ColumnSet groups(std::int64_t from, std::int64_t to) const;

 private:
  std::vector<Columns> runs_;
};

}  // namespace cleave::pieces
