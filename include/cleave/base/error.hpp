// The four kinds of error (docs/architecture.md): bad input, environment, failed check, our own bug.
//
// Nothing below `app` prints or exits; `app` turns these into messages and exit codes. A remote fault (late, lost,
// wrong, malformed) is not an exception: it is a value that the scheduler's policy handles.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

namespace cleave {

/// Exit codes of the program, as docs/interface.md states them.
enum class ExitCode : int { good = 0, environment = 1, bad_input = 2, check_failed = 3, bug = 4, stopped = 75 };

/// One fault in what the user gave: `FILE:LINE: key.path: message (hint)`.
struct Issue {
  std::string file;     ///< as the user wrote it; "command line" for an override; empty where there is none
  int line = 0;         ///< 1-based; 0 where there is none
  std::string key;      ///< dotted path; empty where there is none
  std::string message;  ///< what is wrong
  std::string hint;     ///< how to mend it; may be empty
  bool operator==(const Issue&) const = default;
};

/// Renders an issue on one line, leaving out what is empty.
[[nodiscard]] std::string to_string(const Issue& issue);

/// Bad input or usage: exit code 2. Carries every fault that was found.
class InputError : public std::runtime_error {
 public:
  explicit InputError(std::vector<Issue> issues);
  explicit InputError(std::string message, std::string hint = {});
  [[nodiscard]] const std::vector<Issue>& issues() const { return issues_; }

 private:
  std::vector<Issue> issues_;
};

/// MPI, file system, memory: exit code 1. `operation` on `object` failed, and the library said `detail`.
class EnvironmentError : public std::runtime_error {
 public:
  EnvironmentError(std::string operation, std::string object, std::string detail,
                   std::source_location where = std::source_location::current());
};

/// A check that the user asked for, or the training needs, did not hold: exit code 3.
class CheckFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A broken invariant of our own: exit code 4.
class Bug : public std::logic_error {
 public:
  Bug(const char* expression, std::string detail, std::source_location where = std::source_location::current());
};

}  // namespace cleave

/// Always on: use where it is cheap. `CLEAVE_ASSERT(row < rows, "row {} of {}", row, rows)` needs <fmt/format.h>.
#define CLEAVE_ASSERT(condition, ...)                                              \
  do {                                                                             \
    if (!(condition)) throw ::cleave::Bug(#condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
