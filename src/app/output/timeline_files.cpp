// timeline.json, which the report reads, and trace.json, which trace viewers read.
//
// Arrays in timeline.json are base64 of little-endian numbers (docs/report.md): cells as shares of their width in
// 1/255, spans as columns: u32 start in ticks, f32 length in seconds, u32 device, u16 operation, u8 flags.
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/version.hpp"
#include "cleave/telemetry/trace.hpp"
#include "output/timeline.hpp"

namespace cleave::app {

namespace {

using nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "timeline.json is little-endian");

std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto at = [&](std::size_t j) { return j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0U; };
    const std::uint32_t word = (at(i) << 16U) | (at(i + 1) << 8U) | at(i + 2);
    text += kDigits[(word >> 18U) & 63U];
    text += kDigits[(word >> 12U) & 63U];
    text += i + 1 < bytes.size() ? kDigits[(word >> 6U) & 63U] : '=';
    text += i + 2 < bytes.size() ? kDigits[word & 63U] : '=';
  }
  return text;
}

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

const char* change_name(sched::DeviceChange change) {
  switch (change) {
    case sched::DeviceChange::left: return "left";
    case sched::DeviceChange::joined: return "joined";
    case sched::DeviceChange::slowed: return "slowed";
    case sched::DeviceChange::hung: return "hung";
    case sched::DeviceChange::faulty: return "lies";
  }
  return "";
}

const char* resource_name(int resource) {
  static constexpr const char* kNames[] = {"downlink", "compute", "uplink", "interface out", "interface in", "kernels"};
  return kNames[resource];
}

}  // namespace

// One object a device, and one a profile with sums over its devices.
void Timeline::add_devices(ordered_json& out) const {
  ordered_json devices = ordered_json::array();
  std::vector<Group> groups;
  std::map<std::string, std::size_t> group_of;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const fleet::DeviceProfile& d = devices_[i];
    const sched::Usage used = i < usage_.size() ? usage_[i] : sched::Usage{};
    const double energy = sched::energy_of(d, used, Seconds(end_)).value();
    devices.push_back({{"id", d.id.value},
                       {"name", d.name},
                       {"compute", d.compute.value()},
                       {"memory", d.memory.value()},
                       {"downlink", d.downlink.value()},
                       {"uplink", d.uplink.value()},
                       {"latency", d.latency.value()},
                       {"down_s", busy_[i][kDown]},
                       {"compute_s", busy_[i][kCompute]},
                       {"up_s", busy_[i][kUp]},
                       {"lost_s", busy_[i][kLost]},
                       {"bytes_down", used.bytes_down.value()},
                       {"bytes_up", used.bytes_up.value()},
                       {"tasklets", used.streams},
                       {"memory_peak", used.memory_peak.value()},
                       {"energy_J", energy}});
    const auto [place, fresh] = group_of.try_emplace(d.name, groups.size());
    if (fresh) groups.push_back({.name = d.name});
    Group& group = groups[place->second];
    ++group.count;
    if (used.streams > 0) ++group.used;
    for (std::size_t lane = 0; lane < kLanes; ++lane) group.busy[lane] += busy_[i][lane];
    group.bytes_down += used.bytes_down.value();
    group.bytes_up += used.bytes_up.value();
    group.tasklets += used.streams;
    group.memory_peak = std::max(group.memory_peak, used.memory_peak.value());
    group.energy += energy;
  }
  out["devices"] = std::move(devices);
  ordered_json list = ordered_json::array();
  for (const Group& g : groups) {
    list.push_back({{"name", g.name},
                    {"count", g.count},
                    {"used", g.used},
                    {"down_s", g.busy[kDown]},
                    {"compute_s", g.busy[kCompute]},
                    {"up_s", g.busy[kUp]},
                    {"lost_s", g.busy[kLost]},
                    {"bytes_down", g.bytes_down},
                    {"bytes_up", g.bytes_up},
                    {"tasklets", g.tasklets},
                    {"memory_peak", g.memory_peak},
                    {"energy_J", g.energy}});
  }
  out["groups"] = std::move(list);
}

void Timeline::store(const std::filesystem::path& path) const {
  ordered_json out{{"format", 2}, {"cleave", kVersion}, {"clock", clock_}, {"end_s", end_}};
  out["memory"] = {{"server_predicted", server_predicted_.value()}, {"server_activations_peak", server_peak_.value()}};
  add_devices(out);
  ordered_json parts = ordered_json::array();
  for (const Part& p : parts_) {
    parts.push_back({{"number", p.number},
                     {"first", p.first},
                     {"last", p.last},
                     {"evaluation", p.evaluation},
                     {"start_s", p.start},
                     {"end_s", p.end},
                     {"time_s", p.time},
                     {"bytes_down", p.bytes_down},
                     {"bytes_up", p.bytes_up},
                     {"down_s", p.down_s},
                     {"compute_s", p.compute_s},
                     {"up_s", p.up_s},
                     {"lost_s", p.lost_s}});
  }
  out["parts"] = std::move(parts);
  ordered_json operations = ordered_json::array();
  const double steps = static_cast<double>(std::max<std::int64_t>(1, counted_steps_));
  for (const auto& [type, sum] : operations_) {
    operations.push_back({{"type", type},
                          {"kind", sum.kind},
                          {"phase", sum.phase},
                          {"count", static_cast<double>(sum.count) / steps},
                          {"time_s", sum.time_s / steps},
                          {"planned_s", sum.planned_s / steps},
                          {"bound_s", sum.bound_s / steps}});
  }
  out["operations"] = std::move(operations);
  ordered_json changes = ordered_json::array();
  for (const Change& c : changes_)
    changes.push_back({{"at", c.at}, {"device", c.device}, {"kind", change_name(c.kind)}, {"factor", c.factor}});
  out["changes"] = std::move(changes);
  out["changes_left_out"] = changes_left_out_;

  const auto used_columns = std::min(columns_, static_cast<std::size_t>(end_ / width_) + 1);
  std::string cells;
  const std::int64_t rows = device_rows();
  const bool in_stages = !work_cells_.empty();
  for (std::int64_t row = 0; row <= rows; ++row) {
    const std::int64_t sharing = row == rows ? 1 : std::min(devices_per_row_, fleet_size() - row * devices_per_row_);
    const auto put_lanes = [&](const std::vector<float>& all, std::size_t lanes, std::size_t column) {
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        const float taken = all[(static_cast<std::size_t>(row) * columns_ + column) * lanes + lane];
        const double share = static_cast<double>(taken) / width_ / static_cast<double>(sharing);
        put(cells, static_cast<std::uint8_t>(std::lround(std::min(1.0, share) * 255)));
      }
    };
    for (std::size_t column = 0; column < used_columns; ++column) {
      put_lanes(cells_, kLanes, column);
      if (in_stages) put_lanes(work_cells_, kWorkLanes, column);
    }
  }
  out["cells"] = {{"width_s", width_},
                  {"columns", used_columns},
                  {"lanes", static_cast<int>(kLanes) + (in_stages ? static_cast<int>(kWorkLanes) : 0)},
                  {"devices_per_row", devices_per_row_},
                  {"data", base64(cells)}};

  const double tick = end_ > 0 ? end_ / 4e9 : 1.0;
  std::vector<const Kept*> order;
  for (const Kept& s : kept_) order.push_back(&s);
  std::sort(order.begin(), order.end(), [](const Kept* a, const Kept* b) { return a->start < b->start; });
  std::string start, length, device, name, flags;
  for (const Kept* s : order) {
    put(start, static_cast<std::uint32_t>(s->start / tick));
    put(length, static_cast<float>(s->end - s->start));
    put(device, static_cast<std::uint32_t>(s->device));
    put(name, static_cast<std::uint16_t>(s->name));
    put(flags, static_cast<std::uint8_t>(s->resource | (s->lost ? 8 : 0) | (s->redone ? 16 : 0) | (s->work << 5)));
  }
  out["names"] = names_;
  out["spans"] = {{"count", order.size()},         {"tick_s", tick},
                  {"one_step_in", step_stride_},   {"one_device_in", device_stride_},
                  {"server_links", server_links_}, {"start", base64(start)},
                  {"length", base64(length)},      {"device", base64(device)},
                  {"name", base64(name)},          {"flags", base64(flags)}};
  replace_file(path, out.dump() + "\n");
}

void Timeline::store_trace(const std::filesystem::path& path) const {
  telemetry::TraceWriter trace(static_cast<std::int64_t>(kept_.size() + changes_.size() + parts_.size() + 2));
  const auto process = [&](std::int64_t row) {
    return row < fleet_size()
               ? "device " + std::to_string(row) + " (" + devices_[static_cast<std::size_t>(row)].name + ")"
               : std::string("server");
  };
  const auto server = fleet_size();
  (void)trace.track("run", "steps");
  for (const Part& part : parts_) {
    trace.span(trace.track("run", "steps"), part.evaluation ? "evaluation" : "step " + std::to_string(part.last),
               Seconds(part.start), Seconds(std::max(part.start, part.end)),
               telemetry::JsonObject().add("bytes_down", part.bytes_down).add("bytes_up", part.bytes_up));
  }
  trace.instant(trace.track("run", "steps"), "sampling", Seconds(0),
                telemetry::JsonObject()
                    .add("one_step_in", step_stride_)
                    .add("one_device_in", device_stride_)
                    .add("server_links", server_links_));
  for (const int resource : {3, 5, 4}) (void)trace.track(process(server), resource_name(resource));
  for (std::int64_t row = 0; row < server; row += device_stride_) {
    for (const int resource : {0, 1, 2}) (void)trace.track(process(row), resource_name(resource));
  }
  for (const Kept& s : kept_) {
    const std::string name = s.name >= 0 ? names_[static_cast<std::size_t>(s.name)] : "blocks";
    telemetry::JsonObject details;
    if (s.lost) details.add("lost", true);
    if (s.redone) details.add("redone", true);
    trace.span(trace.track(process(s.device), resource_name(s.resource)), s.lost ? name + " (lost)" : name,
               Seconds(s.start), Seconds(s.end), details);
  }
  for (const Change& c : changes_) {
    trace.instant(trace.track(process(c.device), resource_name(1)), change_name(c.kind), Seconds(c.at),
                  telemetry::JsonObject().add("factor", c.factor));
  }
  trace.store(path);
}

}  // namespace cleave::app
