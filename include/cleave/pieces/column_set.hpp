// ColumnSet: which columns of a tensor are wanted.
#pragma once

#include <cstdint>
#include <vector>

namespace cleave::pieces {

struct Columns {
  std::int64_t begin = 0, end = 0;
  bool operator==(const Columns&) const = default;
  [[nodiscard]] std::int64_t count() const { return end - begin; }
};

/// Runs of columns, apart from each other and ascending.
class ColumnSet {
 public:
  ColumnSet() = default;
  ColumnSet(Columns run) { add(run); }  // NOLINT(google-explicit-constructor)

  /// Adds a run; what overlaps or touches it becomes one run with it. Returns whether anything was new.
  bool add(Columns run);
  bool add(const ColumnSet& other);
  [[nodiscard]] bool empty() const { return runs_.empty(); }
  [[nodiscard]] std::int64_t count() const;
  [[nodiscard]] const std::vector<Columns>& runs() const { return runs_; }
  bool operator==(const ColumnSet&) const = default;

  /// What lies in `range`, counted from `origin` on.
  [[nodiscard]] ColumnSet within(Columns range, std::int64_t origin) const;
  /// Each column c becomes c + by.
  [[nodiscard]] ColumnSet moved(std::int64_t by) const;
  /// The groups of `from` columns that are touched, as groups of `to` columns: heads of queries from heads of keys.
  [[nodiscard]] ColumnSet groups(std::int64_t from, std::int64_t to) const;

 private:
  std::vector<Columns> runs_;
};

}  // namespace cleave::pieces
