// The checkpoints of a folder: by name first, opened only where their state matters.
#include "cleave/checkpoint/folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "cleave/base/durable.hpp"
#include "cleave/base/error.hpp"
#include "cleave/checkpoint/snapshot.hpp"
#include "mapped_file.hpp"

namespace cleave::checkpoint {

namespace fs = std::filesystem;

namespace {

/// The step in `checkpoint-STEP` + ending, or nothing where the name is another. Only the way we write it counts:
/// no sign, no leading zeros.
std::optional<std::int64_t> step_in(std::string_view name, std::string_view ending) {
  constexpr std::string_view kStart = "checkpoint-";
  if (!name.starts_with(kStart) || !name.ends_with(ending) || name.size() <= kStart.size() + ending.size()) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kStart.size(), name.size() - kStart.size() - ending.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc{} || fmt::format("{}", step) != digits || step < 0) return std::nullopt;
  return step;
}

/// All files of the folder called checkpoint-STEP + ending, highest step first.
std::vector<CheckpointFile> list(const fs::path& folder, std::string_view ending) {
  std::vector<CheckpointFile> files;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (error == std::errc::no_such_file_or_directory) return files;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const auto step = step_in(entry->path().filename().string(), ending);
    std::error_code ignored;
    if (step && entry->is_regular_file(ignored)) files.push_back({entry->path(), *step});
  }
  if (error) throw EnvironmentError("list", folder.string(), error.message());
  std::ranges::sort(files, std::ranges::greater{}, &CheckpointFile::step);
  return files;
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) throw EnvironmentError("delete", path.string(), error.message());
}

bool is_whole(const fs::path& path) {
  try {
    verify_snapshot(path);
    return true;
  } catch (const InputError&) { return false; }
}

}  // namespace

fs::path checkpoint_path(const fs::path& folder, std::int64_t step) {
  return folder / fmt::format("checkpoint-{}.h5", step);
}

bool is_checkpoint_name(const std::string& name) { return step_in(name, ".h5") || step_in(name, ".h5.taken_back"); }

std::vector<CheckpointFile> find_checkpoints(const fs::path& folder) { return list(folder, ".h5"); }

NewestCheckpoint newest_whole_checkpoint(const fs::path& folder, std::int64_t up_to) {
  NewestCheckpoint newest;
  for (const CheckpointFile& file : find_checkpoints(folder)) {
    if (file.step > up_to) continue;
    try {
      verify_snapshot(file.path);
      newest.found = file;
      break;
    } catch (const UnreadableFile& error) {
      throw EnvironmentError("go on from", file.path.string(), error.reason());
    } catch (const InputError& error) { newest.skipped.push_back({file.path, error.what()}); }
  }
  return newest;
}

std::vector<fs::path> set_aside_after(const fs::path& folder, std::int64_t step) {
  std::vector<fs::path> aside;
  for (const CheckpointFile& file : find_checkpoints(folder)) {
    if (file.step <= step) break;
    aside.emplace_back(file.path.string() + ".taken_back");
    std::error_code error;
    fs::rename(file.path, aside.back(), error);
    if (error) throw EnvironmentError("rename", file.path.string(), error.message());
  }
  if (!aside.empty()) sync_folder(folder);
  return aside;
}

Pruner::Pruner(fs::path folder, std::optional<fs::path> resumed_from)
    : folder_(std::move(folder)), resumed_from_(std::move(resumed_from)), branch_(find_checkpoints(folder_)) {
  std::ranges::reverse(branch_);
}

std::vector<fs::path> Pruner::set_aside_after(std::int64_t step) {
  std::erase_if(branch_, [&](const CheckpointFile& file) { return file.step > step; });
  return checkpoint::set_aside_after(folder_, step);
}

void Pruner::wrote(const fs::path& file, std::int64_t step) {
  std::erase_if(branch_, [&](const CheckpointFile& old) { return old.path == file; });
  branch_.push_back({file, step});
}

std::vector<fs::path> Pruner::prune(std::int64_t keep, std::optional<std::int64_t> back_to) {
  CLEAVE_ASSERT(keep >= 1, "keep {} checkpoints", keep);
  std::vector<fs::path> deleted;
  const auto drop = [&](const fs::path& path) {
    remove_file(path);
    deleted.push_back(path);
  };
  for (const CheckpointFile& left_behind : list(folder_, ".h5.tmp")) drop(left_behind.path);

  const std::int64_t surplus = static_cast<std::int64_t>(branch_.size()) - keep;
  if (surplus <= 0) return deleted;
  const auto whole =
      std::find_if(branch_.rbegin(), branch_.rend(), [](const CheckpointFile& file) { return is_whole(file.path); });
  const fs::path last_whole = whole == branch_.rend() ? fs::path() : whole->path;
  std::optional<std::int64_t> earlier, next;  // of the two that it may have to go back to
  for (const CheckpointFile& file : branch_) {
    if (!back_to) break;
    if (file.step <= *back_to) earlier = std::max(file.step, earlier.value_or(file.step));
    if (file.step > *back_to) next = std::min(file.step, next.value_or(file.step));
  }
  for (std::int64_t i = surplus - 1; i >= 0; --i) {
    const auto [path, step] = branch_[static_cast<std::size_t>(i)];
    if (path == last_whole || path == resumed_from_ || step == earlier || step == next) continue;
    drop(path);
    branch_.erase(branch_.begin() + i);
  }
  return deleted;
}

}  // namespace cleave::checkpoint
