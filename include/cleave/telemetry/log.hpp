// The run's log: everything to a file, what matters to the console. A thin face on spdlog, made by `app`.
//
// One line a message, flushed as it is written, so that a killed run leaves its last words. Control characters are
// made visible: a message may quote what a device sent. Safe to use from several threads.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace cleave::telemetry {

enum class LogLevel : std::uint8_t { debug, info, warning, error, off };

/// Where a log goes, and what of it.
struct LogSettings {
  std::filesystem::path file{};  ///< appended to; empty for none
  LogLevel file_level = LogLevel::debug;
  std::FILE* console = nullptr;  ///< usually stderr; null for none
  LogLevel console_level = LogLevel::warning;
  std::string tag{};                       ///< names the rank in each line; may be empty
  std::function<void()> before_console{};  ///< called before a console line: takes a live progress line away
};

/// See the file comment. Copies share their sinks.
class Log {
 public:
  /// A log that drops every message.
  Log();
  /// Errors: EnvironmentError where the file cannot be opened.
  explicit Log(const LogSettings& settings);

  /// Writes a message to the sinks that want its level. A failure of a sink is not thrown but counted (failures()).
  void write(LogLevel level, std::string_view message) const;

  template <class... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) const {
    if (wants(LogLevel::debug)) write(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    if (wants(LogLevel::info)) write(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) const {
    if (wants(LogLevel::warning)) write(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) const {
    if (wants(LogLevel::error)) write(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
  }

  [[nodiscard]] bool wants(LogLevel level) const;  ///< whether a message of this level goes anywhere
  [[nodiscard]] std::int64_t failures() const;     ///< messages that a sink could not take (a full disk)

 private:
  struct Sinks;
  std::shared_ptr<Sinks> sinks_;
};

}  // namespace cleave::telemetry
