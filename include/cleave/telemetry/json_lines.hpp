// One JSON object a line, appended to a file that is whole after every line: metrics.jsonl.
//
// The server appends a line per step. After a crash the last line may be torn; a resumed run drops it, and with it the
// lines of steps that it will do again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace cleave::telemetry {

/// A JSON object built field by field, in the order of the calls. A number that is not finite becomes null: JSON has
/// no other way to say it. Doubles are written with as many digits as it takes to read the same value back.
class JsonObject {
 public:
  JsonObject& add(std::string_view key, std::int64_t value);
  JsonObject& add(std::string_view key, int value) { return add(key, static_cast<std::int64_t>(value)); }
  JsonObject& add(std::string_view key, double value);
  JsonObject& add(std::string_view key, bool value);
  JsonObject& add(std::string_view key, std::string_view value);
  JsonObject& add(std::string_view key, const char* value) { return add(key, std::string_view(value)); }
  /// `json` is taken as it is: a nested object or list. Requires: one line of valid JSON.
  JsonObject& add_json(std::string_view key, std::string_view json);

  [[nodiscard]] std::string text() const { return fields_ + "}"; }

 private:
  void open_field(std::string_view key);
  std::string fields_ = "{";
};

/// `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
[[nodiscard]] std::string json_string(std::string_view text);

/// An append-only file of JSON objects. Each append is one write: a reader, or a crash, sees whole lines, at worst a
/// torn last one. Errors: EnvironmentError from all but the destructor.
class JsonLines {
 public:
  /// Starts the file anew; its name is synced.
  [[nodiscard]] static JsonLines create(const std::filesystem::path& path);

  /// Goes on with a file: keeps its whole lines but those with a "step" that `keep` refuses; a torn or unreadable line
  /// is dropped. The old file is replaced as one, so a crash here loses nothing. A missing file is begun.
  [[nodiscard]] static JsonLines open_resumed(const std::filesystem::path& path,
                                              const std::function<bool(std::int64_t step)>& keep);

  JsonLines(JsonLines&& other) noexcept;
  JsonLines& operator=(JsonLines&& other) noexcept;
  ~JsonLines();

  /// Writes the line as a whole, or nothing of it. Errors: EnvironmentError.
  void append(const JsonObject& object);

  /// The lines so far survive a loss of power. Errors: EnvironmentError.
  void sync() const;

  [[nodiscard]] std::int64_t dropped() const { return dropped_; }  ///< lines that open_resumed() left out
  [[nodiscard]] std::int64_t damaged() const { return damaged_; }  ///< those of them that could not be read

 private:
  JsonLines(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  [[nodiscard]] static int open_file(const std::filesystem::path& path, int flags);

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t dropped_ = 0, damaged_ = 0;
};

}  // namespace cleave::telemetry
