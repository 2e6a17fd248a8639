// Parsing with nlohmann/json behind a guard that bounds nesting and refuses repeated keys.
#include "safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "cleave/base/error.hpp"
#include "mapped_file.hpp"

namespace cleave::checkpoint {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

constexpr const char* kHeaderHint = "cut short, damaged, or not a safetensors file";
constexpr int kDeepest = 4;  // header: tensor: shape or offsets
constexpr std::size_t kMostRank = 32;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 60;  // of one tensor

struct NamedSize {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<NamedSize, 15> kTypes = {{{"F64", 8},
                                               {"F32", 4},
                                               {"F16", 2},
                                               {"BF16", 2},
                                               {"I64", 8},
                                               {"I32", 4},
                                               {"I16", 2},
                                               {"I8", 1},
                                               {"U64", 8},
                                               {"U32", 4},
                                               {"U16", 2},
                                               {"U8", 1},
                                               {"BOOL", 1},
                                               {"F8_E4M3", 1},
                                               {"F8_E5M2", 1}}};

std::optional<std::uint64_t> bytes_per_element(std::string_view type) {
  const auto found = std::ranges::find(kTypes, type, &NamedSize::name);
  return found == kTypes.end() ? std::nullopt : std::optional(found->bytes);
}

/// Parses JSON whose nesting is bounded and whose objects have no key twice.
Json parse_guarded(const fs::path& path, std::string_view text) {
  std::vector<std::set<std::string>> keys;
  const auto guard = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kDeepest) refuse_file(path, "its header is nested too deeply", kHeaderHint);
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      refuse_file(path, fmt::format("its header has \"{}\" twice", value.get<std::string>()), kHeaderHint);
    }
    return true;
  };
  try {
    Json json = Json::parse(text.begin(), text.end(), guard);
    if (!json.is_object()) refuse_file(path, "its header is no JSON object", kHeaderHint);
    return json;
  } catch (const Json::exception& error) {
    refuse_file(path, fmt::format("its header is not JSON: {}", error.what()), kHeaderHint);
  }
}

std::vector<std::uint64_t> whole_numbers(const Json& json, bool& good) {
  std::vector<std::uint64_t> numbers;
  good = json.is_array() && json.size() <= kMostRank &&
         std::ranges::all_of(json, [](const Json& number) { return number.is_number_unsigned(); });
  if (good) {
    for (const Json& number : json) numbers.push_back(number.get<std::uint64_t>());
  }
  return numbers;
}

SafetensorsEntry parse_entry(const fs::path& path, const std::string& name, const Json& json) {
  const auto refuse = [&](const std::string& what) {
    refuse_file(path, fmt::format("tensor {}: {}", name, what), kHeaderHint);
  };
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    refuse("needs dtype, shape and data_offsets, and nothing else");
  }
  if (!json["dtype"].is_string()) refuse("its dtype is no string");
  SafetensorsEntry entry;
  entry.info = {name, json["dtype"].get<std::string>(), {}};
  const auto element_bytes = bytes_per_element(entry.info.dtype);
  if (!element_bytes) refuse(fmt::format("unknown dtype \"{}\"", entry.info.dtype));

  bool good = false;
  std::uint64_t size = *element_bytes;
  for (const std::uint64_t extent : whole_numbers(json["shape"], good)) {
    // Also where another extent is 0: what is this large is no tensor.
    if (extent > kMostBytes || __builtin_mul_overflow(size, std::max<std::uint64_t>(extent, 1), &size) ||
        size > kMostBytes) {
      refuse(fmt::format("its shape {} is impossible", json["shape"].dump()));
    }
    entry.info.shape.push_back(static_cast<std::int64_t>(extent));
  }
  if (!good) refuse("its shape is no list of whole numbers");
  if (std::ranges::find(entry.info.shape, 0) != entry.info.shape.end()) size = 0;

  const auto offsets = whole_numbers(json["data_offsets"], good);
  if (!good || offsets.size() != 2 || offsets[1] < offsets[0]) refuse("its data_offsets are no [begin, end]");
  entry.begin = offsets[0];
  entry.size = offsets[1] - offsets[0];
  if (entry.size != size) {
    refuse(fmt::format("{} {} takes {} bytes, but its data_offsets span {}", entry.info.dtype,
                       to_string(entry.info.shape), size, entry.size));
  }
  return entry;
}

/// Ranges must follow each other from the first byte of the data to the last.
void check_ranges(const fs::path& path, const SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::vector<const SafetensorsEntry*> order;
  for (const auto& [name, entry] : header.entries) order.push_back(&entry);
  std::ranges::sort(order, {}, [](const SafetensorsEntry* e) { return std::pair(e->begin, e->size); });
  std::uint64_t end = 0;
  for (const SafetensorsEntry* entry : order) {
    if (entry->begin != end) {
      refuse_file(path,
                  fmt::format("tensor {}: begins at byte {} of the data, {} the end of the one before, {}",
                              entry->info.name, entry->begin, entry->begin < end ? "before" : "after", end),
                  "overlapping or gapped data_offsets");
    }
    end += entry->size;
    if (end > data_bytes) {
      refuse_file(
          path, fmt::format("tensor {}: ends at byte {} of the data, which has {}", entry->info.name, end, data_bytes),
          kHeaderHint);
    }
  }
  if (end != data_bytes) {
    refuse_file(path, fmt::format("{} bytes of data, of which tensors take {}", data_bytes, end), kHeaderHint);
  }
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

SafetensorsHeader parse_safetensors_header(const fs::path& path, std::span<const std::byte> file) {
  std::uint64_t length = 0;
  if (file.size() < sizeof length) refuse_file(path, fmt::format("{} bytes are too few", file.size()), kHeaderHint);
  std::memcpy(&length, file.data(), sizeof length);
  const std::uint64_t rest = file.size() - sizeof length;
  if (length > rest || length > kLongestHeader || length < 2) {
    refuse_file(path, fmt::format("a header of {} bytes in a file of {}", length, file.size()), kHeaderHint);
  }
  const std::string_view text = text_of(file.subspan(sizeof length, length));
  if (text.front() != '{') refuse_file(path, "its header does not begin with '{'", kHeaderHint);

  SafetensorsHeader header;
  const Json json = parse_guarded(path, text);
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) refuse_file(path, "__metadata__ is no object", kHeaderHint);
      for (const auto& [key, entry] : value.items()) {
        if (!entry.is_string()) refuse_file(path, fmt::format("__metadata__: {} is no string", key), kHeaderHint);
        header.metadata[key] = entry.get<std::string>();
      }
    } else {
      header.entries[name] = parse_entry(path, name, value);
    }
  }
  check_ranges(path, header, rest - length);
  for (auto& [name, entry] : header.entries) entry.begin += sizeof length + length;
  return header;
}

std::map<std::string, std::string> parse_safetensors_index(const fs::path& path, std::span<const std::byte> file) {
  if (file.size() > kLongestHeader) refuse_file(path, fmt::format("an index of {} bytes", file.size()));
  const Json json = parse_guarded(path, text_of(file));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) refuse_file(path, "has no object weight_map", "not an index of shards");
  std::map<std::string, std::string> shards;
  for (const auto& [name, shard] : map->items()) {
    const std::string file_name = shard.is_string() ? shard.get<std::string>() : "";
    // A plain name beside the index, never a path out of its folder.
    if (file_name.empty() || file_name.find('/') != std::string::npos || file_name.find('\0') != std::string::npos) {
      refuse_file(path, fmt::format("tensor {}: its shard is no plain file name", name));
    }
    shards[name] = file_name;
  }
  if (shards.empty()) refuse_file(path, "lists no tensors");
  return shards;
}

}  // namespace cleave::checkpoint
