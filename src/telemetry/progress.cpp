// Terminal or not, and how often.
#include "cleave/telemetry/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace cleave::telemetry {

namespace {

using Mode = ProgressSettings::Mode;

constexpr const char* kEraseLine = "\r\x1b[K";  // ECMA-48: to the first column, erase to the end of the line
constexpr int kUsualColumns = 80;

bool can_rewrite(std::FILE* out) {
  const char* term = std::getenv("TERM");
  return ::isatty(::fileno(out)) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0;
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
    : out_(out), clock_(clock), settings_(settings), mode_(settings.mode) {
  if (mode_ == Mode::automatic) mode_ = can_rewrite(out) ? Mode::live : Mode::plain;
}

Progress::~Progress() { finish(); }

void Progress::update(std::int64_t step, std::string_view line) {
  if (mode_ == Mode::quiet) return;
  last_ = line;
  step_ = step;
  held_back_ = true;
  const Seconds passed = clock_.now() - shown_at_;
  const bool due = mode_ == Mode::live ? passed >= settings_.live_every
                                       : passed >= settings_.plain_every && step - shown_step_ >= settings_.plain_steps;
  if (due || !shown_once_) draw();
}

void Progress::draw() {
  if (mode_ == Mode::live) {
    const int columns = settings_.columns > 0 ? settings_.columns : columns_of(out_);
    // One column stays free: a character in the last one would wrap the cursor.
    const std::string_view line = cut(last_, columns - 1);
    std::fprintf(out_, "%s%.*s", kEraseLine, static_cast<int>(line.size()), line.data());
    standing_ = true;
  } else {
    std::fprintf(out_, "%s\n", last_.c_str());
  }
  std::fflush(out_);
  held_back_ = false;
  shown_once_ = true;
  shown_at_ = clock_.now();
  shown_step_ = step_;
}

void Progress::say(std::string_view line) {
  clear();
  std::fprintf(out_, "%.*s\n", static_cast<int>(line.size()), line.data());
  std::fflush(out_);
}

void Progress::clear() {
  if (!standing_) return;
  std::fputs(kEraseLine, out_);
  std::fflush(out_);
  standing_ = false;
  held_back_ = true;  // finish() is to leave it standing
  shown_once_ = false;
}

void Progress::finish() {
  if (held_back_) draw();
  if (standing_) {
    std::fputc('\n', out_);
    std::fflush(out_);
    standing_ = false;
  }
}

}  // namespace cleave::telemetry
