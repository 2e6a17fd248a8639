// spdlog behind Log: a file sink and a console sink of our own that yields to a live progress line.
#include "cleave/telemetry/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "cleave/base/error.hpp"
#include "cleave/base/one_line.hpp"

namespace cleave::telemetry {

namespace {

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    case LogLevel::error: return spdlog::level::err;
    case LogLevel::off: return spdlog::level::off;
  }
  return spdlog::level::off;
}

class ConsoleSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  ConsoleSink(std::FILE* out, std::function<void()> before) : out_(out), before_(std::move(before)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    if (broken_) return;
    if (before_) before_();
    std::fwrite(text.data(), 1, text.size(), out_);
  }
  void flush_() override { broken_ = std::fflush(out_) != 0 || std::ferror(out_) != 0; }

 private:
  std::FILE* out_;
  std::function<void()> before_;
  bool broken_ = false;  // nobody reads it any more: the file sink goes on
};

// A link under the log's name loses the name, as with every file that is written; a pipe would wait for a reader.
void take_name(const std::filesystem::path& file) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::symlink_status(file, error);
  if (std::filesystem::is_symlink(status)) {
    std::filesystem::remove(file, error);
    if (error) throw EnvironmentError("write", file.string(), error.message());
  } else if (std::filesystem::is_fifo(status) || std::filesystem::is_socket(status)) {
    throw EnvironmentError("write", file.string(), "it is a pipe, and no file");
  }
}

}  // namespace

struct Log::Sinks {
  explicit Sinks(std::vector<spdlog::sink_ptr> sinks) : logger("cleave", sinks.begin(), sinks.end()) {}
  spdlog::logger logger;
  std::atomic<std::int64_t> failures{0};
};

Log::Log() : Log(LogSettings{}) {}

Log::Log(const LogSettings& settings) {
  const std::string tag = settings.tag.empty() ? "" : settings.tag + ": ";
  std::string escaped;  // a % in a spdlog pattern opens a flag
  for (const char c : tag) escaped += c == '%' ? std::string("%%") : std::string(1, c);
  std::vector<spdlog::sink_ptr> sinks;
  spdlog::level::level_enum lowest = spdlog::level::off;
  const auto add = [&](spdlog::sink_ptr sink, LogLevel level, const std::string& pattern) {
    sink->set_level(level_of(level));
    sink->set_pattern(pattern);
    lowest = std::min(lowest, level_of(level));
    sinks.push_back(std::move(sink));
  };
  if (!settings.file.empty()) {
    take_name(settings.file);
    try {
      add(std::make_shared<spdlog::sinks::basic_file_sink_mt>(settings.file.string()), settings.file_level,
          "%Y-%m-%d %H:%M:%S.%e %l: " + escaped + "%v");
    } catch (const spdlog::spdlog_ex& error) { throw EnvironmentError("open", settings.file.string(), error.what()); }
  }
  if (settings.console != nullptr) {
    add(std::make_shared<ConsoleSink>(settings.console, settings.before_console), settings.console_level,
        "cleave: %l: " + escaped + "%v");
  }
  sinks_ = std::make_shared<Sinks>(std::move(sinks));
  sinks_->logger.set_level(lowest);
  sinks_->logger.flush_on(spdlog::level::trace);
  sinks_->logger.set_error_handler([state = sinks_.get()](const std::string&) { ++state->failures; });
}

void Log::write(LogLevel level, std::string_view message) const {
  if (wants(level)) sinks_->logger.log(level_of(level), one_line(message));
}

bool Log::wants(LogLevel level) const { return level != LogLevel::off && sinks_->logger.should_log(level_of(level)); }

std::int64_t Log::failures() const { return sinks_->failures; }

}  // namespace cleave::telemetry
