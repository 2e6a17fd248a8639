// Terminal or not, and how often.
#include "cleave/telemetry/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace cleave::telemetry {

namespace {

using Mode = ProgressSettings::Mode;

constexpr const char* kEraseLine = "\r\x1b[K";  // ECMA-48: to the first column, erase to the end of the line
constexpr const char* kLineUp = "\x1b[A";
constexpr int kUsualColumns = 80;

bool can_rewrite(std::FILE* out) {
  const char* term = std::getenv("TERM");
  return ::isatty(::fileno(out)) == 1 && term != nullptr && *term != '\0' && std::strcmp(term, "dumb") != 0;
}

int columns_of(std::FILE* out) {
  winsize size{};
  return ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualColumns;
}

/// The first `columns` characters, taking each code point for one column.
std::string_view cut(std::string_view line, int columns) {
  int used = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool opens = (static_cast<unsigned char>(line[i]) & 0xC0U) != 0x80U;
    if (opens && ++used > columns) return line.substr(0, i);
  }
  return line;
}

}  // namespace

Progress::Progress(std::FILE* out, const Clock& clock, const ProgressSettings& settings)
    : out_(out), clock_(clock), settings_(settings), mode_(settings.mode), made_at_(clock.now()) {
  if (mode_ == Mode::automatic) mode_ = can_rewrite(out) ? Mode::live : Mode::plain;
}

Progress::~Progress() { finish(); }

void Progress::update(std::int64_t step, std::string_view line, std::vector<std::string> panel) {
  if (mode_ == Mode::quiet) return;
  last_ = line;
  panel_ = std::move(panel);
  step_ = step;
  held_back_ = true;
  if (clock_.now() - made_at_ < settings_.first_after) return;
  const Seconds passed = clock_.now() - shown_at_;
  const bool due = mode_ == Mode::live ? passed >= settings_.live_every
                                       : passed >= settings_.plain_every && step - shown_step_ >= settings_.plain_steps;
  if (due || !shown_once_) draw();
}

void Progress::erase() {
  for (; standing_ > 1; --standing_) std::fprintf(out_, "%s%s", kEraseLine, kLineUp);
  std::fputs(kEraseLine, out_);
  standing_ = 0;
}

void Progress::draw() {
  if (mode_ == Mode::live) {
    if (panel_.empty()) panel_ = {last_};
    const int columns = settings_.columns > 0 ? settings_.columns : columns_of(out_);
    erase();
    for (const std::string& whole : panel_) {
      // One column stays free: a character in the last one would wrap the cursor.
      const std::string_view line = cut(whole, columns - 1);
      std::fprintf(out_, "%s%.*s", standing_ > 0 ? "\n" : "", static_cast<int>(line.size()), line.data());
      ++standing_;
    }
  } else {
    std::fprintf(out_, "%s\n", last_.c_str());
  }
  flush();
  held_back_ = false;
  shown_once_ = true;
  shown_at_ = clock_.now();
  shown_step_ = step_;
}

void Progress::say(std::string_view line) {
  if (broken_) return;
  clear();
  std::fprintf(out_, "%.*s\n", static_cast<int>(line.size()), line.data());
  flush();
}

// A console that is gone, or full, is not written to again.
void Progress::flush() {
  if (std::fflush(out_) == 0 && std::ferror(out_) == 0) return;
  broken_ = true;
  mode_ = Mode::quiet;
  held_back_ = false;
  standing_ = 0;
}

void Progress::clear() {
  if (standing_ == 0) return;
  erase();
  flush();
  held_back_ = !broken_;  // finish() is to leave it standing
  shown_once_ = false;
}

void Progress::drop() {
  clear();
  held_back_ = false;
}

void Progress::finish() {
  if (held_back_) draw();
  if (standing_ == 0) return;
  std::fputc('\n', out_);
  flush();
  standing_ = 0;
}

std::string sparkline(std::span<const double> values, int columns, bool ascii) {
  static constexpr const char* kUtf8[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr const char* kAscii[] = {".", ":", "-", "=", "+", "*", "#", "@"};
  std::vector<double> finite;
  std::copy_if(values.begin(), values.end(), std::back_inserter(finite), [](double v) { return std::isfinite(v); });
  const auto count = std::min(finite.size(), static_cast<std::size_t>(std::max(0, columns)));
  std::vector<double> means;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t from = i * finite.size() / count, to = (i + 1) * finite.size() / count;
    double sum = 0;
    for (std::size_t j = from; j < to; ++j) sum += finite[j];
    means.push_back(sum / static_cast<double>(to - from));
  }
  if (means.empty()) return {};
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  std::string text;
  for (const double mean : means) {
    const double share = *high > *low ? (mean - *low) / (*high - *low) : 0.0;
    text += (ascii ? kAscii : kUtf8)[static_cast<std::size_t>(std::lround(share * 7))];
  }
  return text;
}

bool shows_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale(value);
    return locale.find("UTF-8") != std::string_view::npos || locale.find("utf8") != std::string_view::npos;
  }
  return false;
}

}  // namespace cleave::telemetry
