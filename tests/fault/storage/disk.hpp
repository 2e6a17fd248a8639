// What a disk may hold after a crash: a model of a file system that is told what was done, and which of it is lost.
//
// Writes to a file are safe once the file has been synced, names in a folder once the folder has been; nothing else is
// promised (POSIX). So any subset of what is not safe may be lost, whatever its order was. Source of the approach: the
// crash tests of SQLite and of LevelDB (db/fault_injection_test.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "calls.hpp"
#include "run.hpp"

namespace cleave::faults {

/// What a file holds. Copies share it until one of them is written to: thousands of disks differ in a file or two.
class Contents {
 public:
  Contents() : Contents(std::string()) {}
  Contents(std::string text) : text_(std::make_shared<const Text>(Text{std::move(text), {}})) {}
  Contents(const char* text) : Contents(std::string(text)) {}
  /// Bytes [offset, offset + some.size()) become `some`; a gap before them, zeros.
  void write(std::size_t offset, std::string_view some);
  void resize(std::size_t size);
  [[nodiscard]] const std::string& text() const { return text_->bytes; }
  [[nodiscard]] std::size_t hash() const {
    if (!text_->hash) text_->hash = std::hash<std::string>()(text_->bytes);
    return *text_->hash;
  }
  bool operator==(const Contents& other) const { return text_ == other.text_ || text() == other.text(); }

 private:
  struct Text {
    std::string bytes;
    mutable std::optional<std::size_t> hash;  // once it has been asked for
  };
  std::shared_ptr<const Text> text_;
};

struct Disk {
  std::map<std::string, std::uint64_t> names;  // files, by path below the root
  std::map<std::uint64_t, Contents> files;
  std::set<std::string> folders;
  bool operator==(const Disk&) const = default;

  /// What lies below `root` now. Files are numbered by inode, as recorded steps number them.
  [[nodiscard]] static Disk of(const fs::path& root);
  /// Writes it all into `root`, which is emptied first.
  void put(const fs::path& root) const;
  void apply(const Step& step);
  /// Equal for equal names with equal contents. Temporary files count by their name and length only: nothing reads
  /// them.
  [[nodiscard]] std::uint64_t digest() const;
};

/// Of the first `count` steps, those that a crash right after them may undo, by index.
[[nodiscard]] std::vector<std::size_t> unsafe_steps(const std::vector<Step>& steps, std::size_t count);

/// Calls `visit(state, steps done)` for states that a crash may leave: for every prefix of the steps, with nothing
/// lost, with all lost that may be, each alone lost, each alone left, `random` random subsets, and the last write torn.
/// Every state comes once, with the first prefix that leaves it.
void for_each_crash(const Disk& before, const std::vector<Step>& steps, int random,
                    const std::function<void(const Disk&, std::size_t)>& visit);

}  // namespace cleave::faults
