// Append with one write(2) per line; resume by filtering and replacing the file.
#include "cleave/telemetry/json_lines.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "cleave/base/atomic_file.hpp"
#include "cleave/base/durable.hpp"
#include "cleave/base/error.hpp"

namespace cleave::telemetry {

namespace fs = std::filesystem;

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void JsonObject::open_field(std::string_view key) {
  if (fields_.size() > 1) fields_ += ", ";
  fields_ += json_string(key) + ": ";
}

JsonObject& JsonObject::add(std::string_view key, std::int64_t value) {
  open_field(key);
  fields_ += fmt::format("{}", value);
  return *this;
}

JsonObject& JsonObject::add(std::string_view key, double value) {
  open_field(key);
  fields_ += std::isfinite(value) ? fmt::format("{}", value) : "null";
  return *this;
}

JsonObject& JsonObject::add(std::string_view key, bool value) {
  open_field(key);
  fields_ += value ? "true" : "false";
  return *this;
}

JsonObject& JsonObject::add(std::string_view key, std::string_view value) {
  open_field(key);
  fields_ += json_string(value);
  return *this;
}

JsonObject& JsonObject::add_json(std::string_view key, std::string_view json) {
  CLEAVE_ASSERT(json.find('\n') == std::string_view::npos, "field {} breaks the line", key);
  open_field(key);
  fields_ += json;
  return *this;
}

int JsonLines::open_file(const fs::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | flags, 0666);
  if (descriptor < 0) throw EnvironmentError("open", path.string(), std::strerror(errno));
  return descriptor;
}

JsonLines JsonLines::create(const fs::path& path) {
  JsonLines lines(path, open_file(path, O_TRUNC));
  sync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
  return lines;
}

JsonLines JsonLines::open_resumed(const fs::path& path, const std::function<bool(std::int64_t)>& keep) {
  std::int64_t dropped = 0, damaged = 0;
  if (fs::exists(path)) {
    const std::string before = read_file(path);
    std::string kept;
    for (std::size_t start = 0; start < before.size();) {
      const std::size_t end = before.find('\n', start);
      const std::string_view line = std::string_view(before).substr(start, end - start);
      start = end == std::string::npos ? before.size() : end + 1;
      const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
      // A line without its end may be the first half of a longer number.
      bool whole = end != std::string::npos && object.is_object(), wanted = true;
      if (whole && object.contains("step")) {
        whole = object["step"].is_number_integer();
        wanted = whole && keep(object["step"].get<std::int64_t>());
      }
      damaged += whole ? 0 : 1;
      if (whole && wanted) {
        kept += line;
        kept += '\n';
      } else {
        ++dropped;
      }
    }
    if (dropped > 0) replace_file(path, kept);
  }
  JsonLines lines(path, open_file(path, 0));
  lines.dropped_ = dropped;
  lines.damaged_ = damaged;
  return lines;
}

JsonLines::JsonLines(JsonLines&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      dropped_(other.dropped_),
      damaged_(other.damaged_) {}

JsonLines& JsonLines::operator=(JsonLines&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(dropped_, other.dropped_);
  std::swap(damaged_, other.damaged_);
  return *this;
}

JsonLines::~JsonLines() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void JsonLines::append(const JsonObject& object) {
  const std::string line = object.text() + "\n";
  std::string_view rest = line;
  const off_t before = ::lseek(descriptor_, 0, SEEK_END);
  while (!rest.empty()) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      if (before >= 0 && ::ftruncate(descriptor_, before) != 0) {
        // A torn line stays; open_resumed() drops it.
      }
      throw EnvironmentError("write", path_.string(), std::strerror(error));
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

void JsonLines::sync() const {
  if (::fsync(descriptor_) != 0) throw EnvironmentError("sync", path_.string(), std::strerror(errno));
}

}  // namespace cleave::telemetry
