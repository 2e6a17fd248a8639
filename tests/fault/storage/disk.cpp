// Steps that lost what they need (a rename of a name that was never made) do nothing.
#include "disk.hpp"

#include <sys/stat.h>

#include <fstream>
#include <iterator>

#include "cleave/base/random.hpp"

namespace cleave::faults {

namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

bool is_write(const Step& step) { return step.kind == Step::Kind::write || step.kind == Step::Kind::truncate; }

bool is_name(const Step& step) {
  switch (step.kind) {
    case Step::Kind::create:
    case Step::Kind::rename:
    case Step::Kind::remove:
    case Step::Kind::link:
    case Step::Kind::mkdir: return true;
    default: return false;
  }
}

/// The folder that has to be synced for the step to be safe.
std::string folder_of(const Step& step) {
  const bool two = step.kind == Step::Kind::rename || step.kind == Step::Kind::link;
  return folder_of(two ? step.other : step.path);
}

}  // namespace

void Contents::write(std::size_t offset, std::string_view some) {
  std::string bytes = text();
  if (bytes.size() < offset + some.size()) bytes.resize(offset + some.size());
  bytes.replace(offset, some.size(), some);
  *this = Contents(std::move(bytes));
}

void Contents::resize(std::size_t size) {
  std::string bytes = text();
  bytes.resize(size);
  *this = Contents(std::move(bytes));
}

Disk Disk::of(const fs::path& root) {
  Disk disk;
  if (!fs::exists(root)) return disk;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string name = entry.path().lexically_relative(root).string();
    if (entry.is_directory()) {
      disk.folders.insert(name);
      continue;
    }
    struct stat status {};
    if (!entry.is_regular_file() || ::stat(entry.path().c_str(), &status) != 0) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    disk.files[status.st_ino] = std::string(std::istreambuf_iterator<char>(in), {});
    disk.names[name] = status.st_ino;
  }
  return disk;
}

void Disk::put(const fs::path& root) const {
  fs::remove_all(root);
  fs::create_directories(root);
  for (const std::string& folder : folders) fs::create_directories(root / folder);
  for (const auto& [name, file] : names) {
    fs::create_directories((root / name).parent_path());
    const auto found = files.find(file);
    const std::string bytes = found == files.end() ? std::string() : found->second.text();
    std::ofstream(root / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
}

void Disk::apply(const Step& step) {
  switch (step.kind) {
    case Step::Kind::create:
      names[step.path] = step.file;
      files.try_emplace(step.file);
      break;
    case Step::Kind::write: files[step.file].write(static_cast<std::size_t>(step.offset), step.other); break;
    case Step::Kind::truncate: files[step.file].resize(static_cast<std::size_t>(step.offset)); break;
    case Step::Kind::rename: {
      const auto found = names.find(step.path);
      if (found != names.end()) {
        const std::uint64_t file = found->second;
        names.erase(found);
        names[step.other] = file;
        break;
      }
      if (!folders.contains(step.path)) break;
      const auto moved = [&](const std::string& name) {
        return name == step.path || name.starts_with(step.path + "/") ? step.other + name.substr(step.path.size())
                                                                      : name;
      };
      std::map<std::string, std::uint64_t> new_names;
      for (const auto& [name, file] : names) new_names[moved(name)] = file;
      names = std::move(new_names);
      std::set<std::string> new_folders;
      for (const std::string& folder : folders) new_folders.insert(moved(folder));
      folders = std::move(new_folders);
      break;
    }
    case Step::Kind::remove: names.erase(step.path); break;
    case Step::Kind::link: names[step.other] = step.file; break;
    case Step::Kind::mkdir: folders.insert(step.path); break;
    case Step::Kind::sync_file:
    case Step::Kind::sync_folder:
    case Step::Kind::said: break;
  }
}

std::uint64_t Disk::digest() const {
  std::string all;
  for (const std::string& folder : folders) all += folder + "/\n";
  const Contents nothing;
  for (const auto& [name, file] : names) {
    const auto found = files.find(file);
    const Contents& contents = found == files.end() ? nothing : found->second;
    all += name + "\n" + std::to_string(contents.text().size()) + "\n";
    if (!name.ends_with(".tmp")) all += std::to_string(contents.hash()) + "\n";
  }
  return std::hash<std::string>()(all);
}

std::vector<std::size_t> unsafe_steps(const std::vector<Step>& steps, std::size_t count) {
  std::vector<std::size_t> unsafe;
  std::set<std::uint64_t> synced_files;
  std::set<std::string> synced_folders;
  for (std::size_t i = count; i-- > 0;) {
    const Step& step = steps[i];
    if (step.kind == Step::Kind::sync_file) synced_files.insert(step.file);
    if (step.kind == Step::Kind::sync_folder) synced_folders.insert(step.path);
    if (is_write(step) && !synced_files.contains(step.file)) unsafe.push_back(i);
    if (is_name(step) && !synced_folders.contains(folder_of(step))) unsafe.push_back(i);
  }
  return unsafe;
}

void for_each_crash(const Disk& before, const std::vector<Step>& steps, int random,
                    const std::function<void(const Disk&, std::size_t)>& visit) {
  std::set<std::pair<std::uint64_t, std::size_t>> seen;
  std::size_t said = 0;             // what is promised grows with it, though the disk stays as it is
  std::vector<Disk> whole{before};  // [i]: after the first i steps, nothing lost
  for (const Step& step : steps) {
    whole.push_back(whole.back());
    whole.back().apply(step);
  }
  const auto try_without = [&](std::size_t count, const std::set<std::size_t>& lost, bool torn) {
    const std::size_t from = torn ? count - 1 : lost.empty() ? count : *lost.begin();
    Disk disk = whole[from];
    for (std::size_t i = from; i < count; ++i) {
      if (lost.contains(i)) continue;
      if (torn) {
        Step half = steps[i];
        half.other.resize(half.other.size() / 2);
        disk.apply(half);
      } else {
        disk.apply(steps[i]);
      }
    }
    if (seen.insert({disk.digest(), said}).second) visit(disk, count);
  };
  for (std::size_t count = 0; count <= steps.size(); ++count) {
    if (count > 0 && !reports(steps[count - 1]).empty()) ++said;
    const std::vector<std::size_t> unsafe = unsafe_steps(steps, count);
    const std::set<std::size_t> all(unsafe.begin(), unsafe.end());
    try_without(count, {}, false);
    try_without(count, all, false);
    if (count > 0 && steps[count - 1].kind == Step::Kind::write) try_without(count, {}, true);
    if (count > 0 && (steps[count - 1].kind == Step::Kind::sync_file || steps[count - 1].kind == Step::Kind::said))
      continue;
    for (const std::size_t one : unsafe) {
      try_without(count, {one}, false);
      std::set<std::size_t> others = all;
      others.erase(one);
      try_without(count, others, false);
    }
    const Random draw(1, Purpose::test, static_cast<std::uint32_t>(count));
    for (int i = 0; i < random && unsafe.size() > 2; ++i) {
      std::set<std::size_t> lost;
      for (std::size_t j = 0; j < unsafe.size(); ++j) {
        if (draw.below(static_cast<std::uint64_t>(i) * 4096 + j, 2) == 1) lost.insert(unsafe[j]);
      }
      try_without(count, lost, false);
    }
  }
}

}  // namespace cleave::faults
