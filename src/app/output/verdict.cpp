// A small JSON file, written whole.
#include "output/verdict.hpp"

#include <nlohmann/json.hpp>
#include <system_error>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/durable.hpp"
#include "cleave/base/error.hpp"

namespace cleave::app {

namespace fs = std::filesystem;

namespace {

fs::path verdict_path(const fs::path& folder) { return folder / "verdict.json"; }

}  // namespace

std::vector<std::int64_t> values_of(const std::vector<DeviceId>& devices) {
  std::vector<std::int64_t> values;
  values.reserve(devices.size());
  for (const DeviceId id : devices) values.push_back(id.value);
  return values;
}

void store_verdict(const fs::path& folder, const Verdict& verdict) {
  const nlohmann::ordered_json all{{"after_step", verdict.after_step}, {"devices", values_of(verdict.devices)}};
  replace_file(verdict_path(folder), all.dump() + "\n");
}

std::optional<Verdict> find_verdict(const fs::path& folder) {
  const fs::path path = verdict_path(folder);
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const nlohmann::json all = nlohmann::json::parse(read_file(path), nullptr, false);
  const auto is_list = [](const nlohmann::json& list) {
    if (!list.is_array()) return false;
    for (const nlohmann::json& id : list) {
      if (!id.is_number_integer()) return false;
    }
    return true;
  };
  if (!all.is_object() || !all.contains("after_step") || !all["after_step"].is_number_integer() ||
      !all.contains("devices") || !is_list(all["devices"])) {
    throw InputError(path.string() + " does not say which steps are to be taken back",
                     "a run that found somebody out wrote it; without it, its checkpoints are taken for good");
  }
  Verdict verdict{.after_step = all["after_step"].get<std::int64_t>(), .devices = {}};
  for (const nlohmann::json& id : all["devices"]) verdict.devices.emplace_back(id.get<std::int64_t>());
  return verdict;
}

void remove_verdict(const fs::path& folder) {
  std::error_code error;
  const bool was_there = fs::remove(verdict_path(folder), error);
  if (error) throw EnvironmentError("delete", verdict_path(folder).string(), error.message());
  if (was_there) sync_folder(folder);
}

}  // namespace cleave::app
