// Sets of devices as ranges of their numbers; equal neighbours, of steps and of names, as one entry.
#include "part_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace cleave::server {

namespace {

using Json = nlohmann::ordered_json;

struct NumberRange {
  std::int64_t first = 0, last = 0;
};

// "0-4,7"
std::string ranges_of(const std::set<DeviceId>& devices) {
  std::string text;
  for (auto at = devices.begin(); at != devices.end();) {
    NumberRange range{at->value, at->value};
    for (++at; at != devices.end() && at->value == range.last + 1; ++at) ++range.last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", range.first);
    if (range.last > range.first) text += fmt::format("-{}", range.last);
  }
  return text;
}

std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::optional<std::vector<NumberRange>> ranges_in(const Json& json) {
  std::vector<NumberRange> ranges;
  if (!json.is_string()) return std::nullopt;
  const std::string all = json.get<std::string>();
  for (std::string_view rest = all; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view one = rest.substr(0, comma);
    const std::size_t dash = std::min(one.find('-'), one.size());
    const auto first = number_in(one.substr(0, dash)),
               last = dash == one.size() ? first : number_in(one.substr(dash + 1));
    if (!first || !last || *last < *first) return std::nullopt;
    ranges.push_back({*first, *last});
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return ranges;
}

// Names are bytes that anybody chose: as they are stored.
std::string stored_name(const std::string& name) {
  return Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Whether each number in `named` has the same name in the fleet, which may have more devices now.
bool is_this_fleet(const Json& named, std::span<const fleet::DeviceProfile> fleet) {
  if (!named.is_array()) return false;
  for (const Json& entry : named) {
    if (!entry.is_array() || entry.size() != 2 || !entry[1].is_string()) return false;
    const auto ranges = ranges_in(entry[0]);
    if (!ranges) return false;
    const std::string name = stored_name(entry[1].get<std::string>());
    for (const NumberRange& range : *ranges) {
      if (range.last >= std::ssize(fleet)) return false;
      for (std::int64_t id = range.first; id <= range.last; ++id) {
        if (stored_name(fleet[static_cast<std::size_t>(id)].name) != name) return false;
      }
    }
  }
  return true;
}

}  // namespace

std::string to_text(const PartRecord& record, std::span<const fleet::DeviceProfile> fleet) {
  Json names = Json::array(), steps = Json::array();
  for (std::size_t i = 0; i < fleet.size();) {
    std::set<DeviceId> alike;
    const std::string& name = fleet[i].name;
    for (; i < fleet.size() && fleet[i].name == name; ++i) alike.insert(DeviceId(static_cast<std::int64_t>(i)));
    names.push_back({ranges_of(alike), name});
  }
  for (auto at = record.steps.begin(); at != record.steps.end();) {
    const auto first = at;
    std::int64_t last = at->first;
    for (++at; at != record.steps.end() && at->first == last + 1 && at->second == first->second; ++at) ++last;
    steps.push_back({first->first, last, ranges_of(first->second)});
  }
  const Json all{{"devices", names},
                 {"steps", steps},
                 {"before", ranges_of(record.earlier)},
                 {"unknown_before", record.unknown_before}};
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<PartRecord> read_part_record(const std::string& text, std::span<const fleet::DeviceProfile> fleet,
                                           std::int64_t first, std::int64_t next) {
  const Json all = Json::parse(text, nullptr, false);
  if (!all.is_object() || !all.contains("devices") || !all.contains("steps") || !all["steps"].is_array() ||
      !all.contains("before") || !all.contains("unknown_before") || !all["unknown_before"].is_boolean())
    return std::nullopt;
  const bool known = is_this_fleet(all["devices"], fleet);
  const auto devices_in = [&](const Json& json) -> std::optional<std::set<DeviceId>> {
    const auto ranges = ranges_in(json);
    if (!ranges) return std::nullopt;
    std::set<DeviceId> devices;
    if (!known && !ranges->empty()) {
      for (const fleet::DeviceProfile& device : fleet) devices.insert(device.id);
    } else {
      for (const NumberRange& range : *ranges) {
        for (std::int64_t id = range.first; id <= std::min(range.last, std::ssize(fleet) - 1); ++id)
          devices.insert(DeviceId(id));
      }
    }
    return devices;
  };
  PartRecord record;
  const auto before = devices_in(all["before"]);
  if (!before) return std::nullopt;
  record.earlier = *before;
  record.unknown_before = all["unknown_before"].get<bool>();
  std::optional<std::int64_t> expected;
  for (const Json& entry : all["steps"]) {
    if (!entry.is_array() || entry.size() != 3 || !entry[0].is_number_integer() || !entry[1].is_number_integer())
      return std::nullopt;
    const auto from = entry[0].get<std::int64_t>(), to = entry[1].get<std::int64_t>();
    const auto devices = devices_in(entry[2]);
    if (!devices || from < 0 || to < from || to >= next || (expected && from != *expected)) return std::nullopt;
    expected = to + 1;
    if (from < first) record.earlier.insert(devices->begin(), devices->end());
    for (std::int64_t step = std::max(from, first); step <= to; ++step) record.steps[step] = *devices;
  }
  if (expected.value_or(0) != next) return std::nullopt;  // of the last steps it tells nothing
  return record;
}

}  // namespace cleave::server
