// Calls into the C library, counted, recorded and made to fail.
//
// calls.cpp defines functions of the C library (open, write, fsync, rename, mmap, ...) that do what the library's do.
// Linked into a program, or loaded before it (LD_PRELOAD), they are called in the library's stead, by shared libraries
// too. Its allocators are those that the program's own malloc (src/app/main_memory.cpp) stands on, where the two are
// linked together. Nothing happens to a call until arm(): then the n-th call of one kind fails with an error, or the
// process dies in it; and what changes files below a folder is written down, in memory that a parent process shares.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cleave::faults {

enum class Call : std::uint8_t {
  open,
  write,
  sync,
  rename,
  remove,
  link,
  mkdir,
  truncate,
  map,
  event,
  allocate,
  count_
};
inline constexpr int kCalls = static_cast<int>(Call::count_);
inline constexpr const char* kCallNames[kCalls] = {"open",  "write",    "sync", "rename", "remove",  "link",
                                                   "mkdir", "truncate", "map",  "event",  "allocate"};

struct Plan {
  Call call = Call::count_;
  std::int64_t nth = 0;     ///< 1: the first call of its kind; 0: none
  std::int64_t repeat = 1;  ///< so many in a row
  int error = 0;            ///< errno of the call that fails
  int place_depth = 0;      ///< so many callers of each allocation are looked at (Ledger::places); 0: none
  bool die = false;         ///< the process ends in the call instead, as if killed; of a file call, any kind counts
  std::string root;         ///< what is done to files below it is recorded; empty: nothing
};

/// What was done to a file or a name.
struct Step {
  enum class Kind : std::uint8_t { create, write, truncate, sync_file, sync_folder, rename, remove, link, mkdir, said };
  Kind kind = Kind::create;
  std::uint64_t file = 0;  ///< create, write, truncate, sync_file, link
  std::int64_t offset = 0;
  std::string path;   ///< relative to the root; "" is the root itself
  std::string other;  ///< rename, link: the new name; write: bytes; said: a line of the run's log
};

/// Memory for what a child process records; to be made before fork().
class Ledger {
 public:
  Ledger();
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  void clear();
  /// Of the calls of each kind since arm().
  [[nodiscard]] std::int64_t calls(Call call) const;
  /// Calls of all kinds that may change a file.
  [[nodiscard]] std::int64_t file_calls() const;
  [[nodiscard]] bool injected() const;  ///< whether the planned fault happened
  [[nodiscard]] std::vector<Step> steps() const;
  /// Of each allocation in order: who asked for it, through which functions, as one number.
  [[nodiscard]] std::vector<std::uint64_t> places() const;
};

/// From now on, in this process. Requires: a Ledger, if anything is to be recorded or read back.
void arm(const Plan& plan);

}  // namespace cleave::faults
