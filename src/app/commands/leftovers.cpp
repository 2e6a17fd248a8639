// Names and owners first, then the processes: a name is believed only together with the owner of what bears it.
#include "commands/leftovers.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <set>

#include "cleave/base/host_name.hpp"

namespace cleave::app {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::seconds kYoungest{60};

// Of this user, of this kind, no link, and not of late.
bool is_ours_and_old(const fs::path& path, mode_t kind, std::chrono::seconds youngest) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return false;
  return (status.st_mode & S_IFMT) == kind && status.st_uid == ::geteuid() &&
         std::time(nullptr) - status.st_mtime >= youngest.count();
}

bool is_alive(pid_t pid) { return ::kill(pid, 0) == 0 || errno != ESRCH; }

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    found.push_back(entry->path());
  return found;
}

// Files below `folder` that any process that we may look at has mapped or open.
std::set<std::string> in_use(const fs::path& folder) {
  std::set<std::string> used;
  for (const fs::path& process : entries_of("/proc")) {
    const std::string name = process.filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream maps(process / "maps");
    for (std::string line; std::getline(maps, line);) {
      const std::size_t at = line.find(folder.string() + "/");
      if (at != std::string::npos) used.insert(line.substr(at, line.find(' ', at) - at));
    }
    std::error_code error;
    for (const fs::path& open : entries_of(process / "fd")) {
      const fs::path target = fs::read_symlink(open, error);
      if (!error) used.insert(target.string());
    }
  }
  return used;
}

void remove_sessions(const LeftoverPlaces& where, Leftovers& found) {
  const fs::path all = where.sessions / fmt::format("ompi.{}.{}", where.host, ::geteuid());
  if (!is_ours_and_old(all, S_IFDIR, std::chrono::seconds(0))) return;
  for (const fs::path& session : entries_of(all)) {
    const std::string name = session.filename().string();
    pid_t pid = 0;
    if (!name.starts_with("pid.")) continue;
    const auto [end, error] = std::from_chars(name.data() + 4, name.data() + name.size(), pid);
    if (error != std::errc{} || end != name.data() + name.size() || pid <= 1 || is_alive(pid)) continue;
    if (!is_ours_and_old(session, S_IFDIR, where.youngest)) continue;
    std::error_code failure;
    fs::remove_all(session, failure);  // links in it are removed, not followed
    if (failure) {
      found.stay.push_back(session);
    } else {
      ++found.sessions;
    }
  }
}

void remove_segments(const LeftoverPlaces& where, Leftovers& found) {
  const std::string prefix = fmt::format("vader_segment.{}.{}.", where.host, ::geteuid());
  std::vector<fs::path> old;
  for (const fs::path& file : entries_of(where.shared_memory)) {
    if (file.filename().string().starts_with(prefix) && is_ours_and_old(file, S_IFREG, where.youngest))
      old.push_back(file);
  }
  if (old.empty()) return;
  const std::set<std::string> used = in_use(where.shared_memory);
  for (const fs::path& file : old) {
    if (used.contains(file.string())) continue;
    struct stat status {};
    const std::int64_t bytes = ::lstat(file.c_str(), &status) == 0 ? status.st_blocks * 512 : 0;
    if (::unlink(file.c_str()) != 0) {
      found.stay.push_back(file);
      continue;
    }
    ++found.segments;
    found.memory += Bytes(bytes);
  }
}

}  // namespace

LeftoverPlaces LeftoverPlaces::here() {
  LeftoverPlaces where{.sessions = "/tmp", .shared_memory = "/dev/shm", .host = {}, .youngest = kYoungest};
  for (const char* name : {"OMPI_MCA_orte_tmpdir_base", "TMPDIR", "TEMP", "TMP"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    where.sessions = value;
    break;
  }
  const std::string host = host_name();
  where.host = host.substr(0, host.find('.'));  // as Open MPI names it
  return where;
}

Leftovers remove_leftovers(const LeftoverPlaces& where) {
  Leftovers found;
  if (where.host.empty() || where.host.find('/') != std::string::npos) return found;
  remove_sessions(where, found);
  remove_segments(where, found);
  return found;
}

std::string describe(const Leftovers& found) {
  std::string text;
  if (found.sessions + found.segments > 0) {
    text = fmt::format(
        "removed what killed jobs of Open MPI had left: {} session folders, {} segments of shared memory of {:.1f} MiB",
        found.sessions, found.segments, static_cast<double>(found.memory.value()) / (1 << 20));
  }
  for (const fs::path& path : found.stay)
    text += fmt::format("{}{} is left of a killed job and cannot be removed", text.empty() ? "" : "; ", path.string());
  return text;
}

}  // namespace cleave::app
