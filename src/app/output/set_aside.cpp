// First the other branch is whole beside the folder (second names of its checkpoints, copies of the rest), then it
// leaves the folder, the newest checkpoint last.
#include "output/set_aside.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

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

fs::path without_slash(const fs::path& folder) { return folder.has_filename() ? folder : folder.parent_path(); }

// What a link leads to; any other folder as it was named.
fs::path real_folder(const fs::path& folder) {
  fs::path clean = without_slash(folder);
  std::error_code error;
  return fs::is_symlink(clean, error) ? fs::canonical(clean) : clean;
}

bool is_mounted(const fs::path& folder) {
  struct stat own {
  }, above{};
  return ::stat(folder.c_str(), &own) == 0 && ::stat((folder / "..").c_str(), &above) == 0 &&
         own.st_dev != above.st_dev;
}

void remove_name(const fs::path& file) {
  std::error_code error;
  fs::remove(file, error);
  if (error) throw EnvironmentError("delete", file.string(), error.message());
}

}  // namespace

fs::path free_name_beside(const fs::path& folder) {
  fs::path beside = real_folder(folder);
  // Beside a file system of its own, as a volume of a container is, would be on another one, which may not last.
  if (is_mounted(beside)) beside /= beside.filename();
  std::error_code error;
  for (int number = 1;; ++number) {
    fs::path name = fmt::format("{}.{}", beside.string(), number);
    if (!fs::exists(fs::symlink_status(name, error))) return name;
  }
}

fs::path move_run(const fs::path& folder) {
  const fs::path aside = free_name_beside(folder), above = aside.has_parent_path() ? aside.parent_path() : ".";
  std::vector<fs::path> own;
  // A link stays, and so does a folder that is a file system of its own.
  bool alone = real_folder(folder) == without_slash(folder) && !is_mounted(folder);
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
  // The newest checkpoint last, and the metrics stay beside it until it has left: after a crash on the way the run can
  // still go on from there.
  const fs::path metrics = folder / "metrics.jsonl";
  std::optional<fs::path> newest;
  if (const auto checkpoints = checkpoint::find_checkpoints(folder); !checkpoints.empty())
    newest = checkpoints.front().path;
  const bool has_metrics = std::erase(own, metrics) > 0;
  std::erase_if(own, [&](const fs::path& file) { return file.filename() == "lock" || file == newest; });
  make_folders(aside);
  for (const fs::path& file : own) move_file(file, aside / file.filename());
  if (has_metrics) copy_file_whole(metrics, aside / metrics.filename());
  sync_folder(aside);
  if (newest) {
    move_file(*newest, aside / newest->filename());
    sync_folder(aside);
  }
  if (has_metrics) remove_name(metrics);
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
