// First the other branch is whole beside the folder (second names of its checkpoints, copies of the rest), then it
// leaves the folder, the newest checkpoint last.
#include "output/set_aside.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/durable.hpp"
#include "cleave/base/error.hpp"
#include "cleave/checkpoint/folder.hpp"
#include "output/run_files.hpp"

namespace cleave::app {

namespace fs = std::filesystem;

namespace {

// The checkpoint of `folder` that is the same file as `from`, under whatever name that was given.
std::optional<checkpoint::CheckpointFile> find_own(const std::vector<checkpoint::CheckpointFile>& files,
                                                   const fs::path& from) {
  for (const checkpoint::CheckpointFile& file : files) {
    std::error_code error;
    if (fs::equivalent(file.path, from, error)) return file;
  }
  return std::nullopt;
}

// Whether metrics.jsonl has a line of a step after `step`.
bool has_lines_after(const fs::path& metrics, std::int64_t step) {
  std::ifstream in(metrics);
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer()) continue;
    if (object["step"].get<std::int64_t>() > step) return true;
  }
  return false;
}

// What a killed writer left goes with it.
bool is_of_a_run(const fs::path& file) {
  std::string name = file.filename().string();
  if (name.ends_with(".tmp")) name.resize(name.size() - 4);
  const auto among = [&](const auto& names) { return std::ranges::find(names, name) != names.end(); };
  return among(kRecordsOfRun) || among(kOtherFilesOfRun) || checkpoint::is_checkpoint_name(name);
}

// What the new branch writes anew or goes on with: a run's files but checkpoints, the lock and what a killed writer
// left.
void copy_the_rest(const fs::path& folder, const fs::path& aside) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || !is_of_a_run(entry.path()) || name == "lock" || name.ends_with(".tmp") ||
        name.ends_with(".h5"))
      continue;
    copy_file_whole(entry.path(), aside / name);
  }
}

void move_file(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) throw EnvironmentError("move", from.string() + " to " + to.string(), error.message());
}

void remove_name(const fs::path& file) {
  std::error_code error;
  fs::remove(file, error);
  if (error) throw EnvironmentError("delete", file.string(), error.message());
}

}  // namespace

fs::path free_name_beside(const fs::path& folder) {
  const fs::path clean = folder.has_filename() ? folder : folder.parent_path();
  std::error_code error;
  for (int number = 1;; ++number) {
    fs::path name = fmt::format("{}.{}", clean.string(), number);
    if (!fs::exists(fs::symlink_status(name, error))) return name;
  }
}

fs::path move_run(const fs::path& folder) {
  const fs::path aside = free_name_beside(folder), above = aside.has_parent_path() ? aside.parent_path() : ".";
  std::vector<fs::path> own;
  bool alone = true;
  std::error_code error, ignored;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (is_of_a_run(entry->path()) && !entry->is_directory(ignored)) {
      own.push_back(entry->path());
    } else {
      alone = false;
    }
  }
  if (error) throw EnvironmentError("list", folder.string(), error.message());
  if (alone) {
    move_file(folder, aside);
    sync_folder(above);
    return aside;
  }
  // The newest checkpoint and the metrics last: after a crash on the way the run can still go on from there.
  std::vector<fs::path> last{folder / "metrics.jsonl"};
  if (const auto checkpoints = checkpoint::find_checkpoints(folder); !checkpoints.empty())
    last.push_back(checkpoints.front().path);
  std::erase_if(own, [&](const fs::path& file) {
    return file.filename() == "lock" || std::ranges::find(last, file) != last.end();
  });
  std::erase_if(last, [&](const fs::path& file) { return !fs::exists(fs::symlink_status(file, ignored)); });
  own.insert(own.end(), last.begin(), last.end());
  make_folders(aside);
  for (const fs::path& file : own) move_file(file, aside / file.filename());
  sync_folder(aside);
  sync_folder(folder);
  return aside;
}

Branched begin_branch(const fs::path& folder, const Continuation& how) {
  std::vector<checkpoint::CheckpointFile> files = checkpoint::find_checkpoints(folder);
  std::ranges::reverse(files);  // lowest step first
  const auto own = find_own(files, how.from);
  std::vector<checkpoint::CheckpointFile> others = files;
  if (own) std::erase_if(others, [&](const auto& file) { return file.step <= own->step; });

  Branched branched{.from = own ? own->path : checkpoint::checkpoint_path(folder, how.step), .set_aside = {}};
  const fs::path metrics = folder / "metrics.jsonl";
  const bool other_metrics = own ? !how.same_run && has_lines_after(metrics, how.step) : fs::exists(metrics);
  if (!others.empty() || other_metrics) {
    const fs::path aside = free_name_beside(folder);
    make_folders(aside);
    copy_the_rest(folder, aside);
    for (const checkpoint::CheckpointFile& file : others) link_or_copy(file.path, aside / file.path.filename());
    sync_folder(aside);
    branched.set_aside = aside;
  }

  for (std::size_t i = 0; i + 1 < others.size(); ++i) remove_name(others[i].path);
  sync_folder(folder);
  if (!own) {
    if (fs::exists(metrics)) remove_name(metrics);
    link_or_copy(how.from, branched.from);
  }
  if (!others.empty() && others.back().path != branched.from) remove_name(others.back().path);
  sync_folder(folder);
  return branched;
}

}  // namespace cleave::app
