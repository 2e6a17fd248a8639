// Parsing and rendering of quantities from one table of units.
#include "cleave/config/quantity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "names.hpp"

namespace cleave::config {

namespace {

/// `value` units are value * factor / divisor of the base unit; one of the two is 1, so that conversion rounds once.
struct Unit {
  std::string_view name;
  double factor;
  double divisor = 1;
};

/// What people write instead, and what to tell them.
struct Confused {
  std::string_view written;
  std::string_view meant;
};

constexpr double kKi = 1024, kMi = kKi * kKi, kGi = kMi * kKi, kTi = kGi * kKi;

constexpr std::array<Unit, 9> kSizes{{{"TiB", kTi},
                                      {"TB", 1e12},
                                      {"GiB", kGi},
                                      {"GB", 1e9},
                                      {"MiB", kMi},
                                      {"MB", 1e6},
                                      {"KiB", kKi},
                                      {"kB", 1e3},
                                      {"B", 1}}};
constexpr std::array<Unit, 14> kRates{{{"TB/s", 1e12},
                                       {"GB/s", 1e9},
                                       {"MB/s", 1e6},
                                       {"kB/s", 1e3},
                                       {"B/s", 1},
                                       {"Tbit/s", 1.25e11},
                                       {"Gbit/s", 1.25e8},
                                       {"Mbit/s", 1.25e5},
                                       {"kbit/s", 125},
                                       {"bit/s", 1, 8},
                                       {"TiB/s", kTi},
                                       {"GiB/s", kGi},
                                       {"MiB/s", kMi},
                                       {"KiB/s", kKi}}};
constexpr std::array<Unit, 6> kSpeeds{
    {{"PFLOP/s", 1e15}, {"TFLOP/s", 1e12}, {"GFLOP/s", 1e9}, {"MFLOP/s", 1e6}, {"kFLOP/s", 1e3}, {"FLOP/s", 1}}};
constexpr std::array<Unit, 6> kTimes{
    {{"h", 3600}, {"min", 60}, {"s", 1}, {"ms", 1, 1e3}, {"us", 1, 1e6}, {"ns", 1, 1e9}}};
constexpr std::array<Unit, 3> kPowers{{{"kW", 1e3}, {"W", 1}, {"mW", 1, 1e3}}};

// Those that neither a change of case nor one wrong letter explains, or that could mean two things.
constexpr std::array<Confused, 29> kSizeConfusions{
    {{"K", "kB or KiB"},   {"k", "kB or KiB"}, {"KB", "kB or KiB"}, {"kb", "kB or KiB"},
     {"Kb", "kB or KiB"},  {"M", "MB or MiB"}, {"m", "MB or MiB"},  {"mb", "MB or MiB"},
     {"Mb", "MB or MiB"},  {"G", "GB or GiB"}, {"g", "GB or GiB"},  {"gb", "GB or GiB"},
     {"Gb", "GB or GiB"},  {"T", "TB or TiB"}, {"t", "TB or TiB"},  {"tb", "TB or TiB"},
     {"Tb", "TB or TiB"},  {"Ki", "KiB"},      {"Mi", "MiB"},       {"Gi", "GiB"},
     {"Ti", "TiB"},        {"kiB", "KiB"},     {"b", "B"},          {"byte", "B"},
     {"bytes", "B"},       {"Byte", "B"},      {"Bytes", "B"},      {"Mbit", "MB or MiB"},
     {"Gbit", "GB or GiB"}}};
constexpr std::array<Confused, 33> kRateConfusions{{{"bps", "bit/s"},
                                                    {"kbps", "kbit/s"},
                                                    {"Kbps", "kbit/s"},
                                                    {"mbps", "Mbit/s"},
                                                    {"Mbps", "Mbit/s"},
                                                    {"gbps", "Gbit/s"},
                                                    {"Gbps", "Gbit/s"},
                                                    {"Tbps", "Tbit/s"},
                                                    {"Bps", "B/s"},
                                                    {"kBps", "kB/s"},
                                                    {"KBps", "kB/s"},
                                                    {"MBps", "MB/s"},
                                                    {"GBps", "GB/s"},
                                                    {"TBps", "TB/s"},
                                                    {"b/s", "bit/s or B/s"},
                                                    {"kb/s", "kbit/s or kB/s"},
                                                    {"Kb/s", "kbit/s or kB/s"},
                                                    {"KB/s", "kB/s or KiB/s"},
                                                    {"mb/s", "Mbit/s or MB/s"},
                                                    {"Mb/s", "Mbit/s or MB/s"},
                                                    {"gb/s", "Gbit/s or GB/s"},
                                                    {"Gb/s", "Gbit/s or GB/s"},
                                                    {"Tb/s", "Tbit/s or TB/s"},
                                                    {"Mb", "Mbit/s or MB/s"},
                                                    {"Gb", "Gbit/s or GB/s"},
                                                    {"M", "Mbit/s or MB/s"},
                                                    {"G", "Gbit/s or GB/s"},
                                                    {"K", "kbit/s or kB/s"},
                                                    {"k", "kbit/s or kB/s"},
                                                    {"Mbit", "Mbit/s"},
                                                    {"Gbit", "Gbit/s"},
                                                    {"MB", "MB/s"},
                                                    {"GB", "GB/s"}}};
constexpr std::array<Confused, 20> kSpeedConfusions{
    {{"FLOPS", "FLOP/s"},   {"FLOPs", "FLOP/s"},   {"flops", "FLOP/s"},   {"MFLOPS", "MFLOP/s"}, {"MFLOPs", "MFLOP/s"},
     {"GFLOPS", "GFLOP/s"}, {"GFLOPs", "GFLOP/s"}, {"gflops", "GFLOP/s"}, {"TFLOPS", "TFLOP/s"}, {"TFLOPs", "TFLOP/s"},
     {"tflops", "TFLOP/s"}, {"PFLOPS", "PFLOP/s"}, {"PFLOPs", "PFLOP/s"}, {"TFLOP", "TFLOP/s"},  {"GFLOP", "GFLOP/s"},
     {"M", "MFLOP/s"},      {"G", "GFLOP/s"},      {"T", "TFLOP/s"},      {"TF", "TFLOP/s"},     {"GF", "GFLOP/s"}}};
constexpr std::array<Confused, 20> kTimeConfusions{
    {{"sec", "s"},   {"secs", "s"},     {"second", "s"},   {"seconds", "s"},   {"m", "min or ms"},
     {"M", "min"},   {"mins", "min"},   {"minute", "min"}, {"minutes", "min"}, {"hr", "h"},
     {"hrs", "h"},   {"hour", "h"},     {"hours", "h"},    {"msec", "ms"},     {"usec", "us"},
     {"nsec", "ns"}, {"\u00b5s", "us"}, {"\u03bcs", "us"}, {"S", "s"},         {"d", "h"}}};
constexpr std::array<Confused, 6> kPowerConfusions{
    {{"watt", "W"}, {"watts", "W"}, {"Watt", "W"}, {"Watts", "W"}, {"MW", "mW or kW"}, {"w", "W"}}};

/// One kind of quantity: what messages call it, an example, its units, largest first in the order they are preferred.
struct Kind {
  std::string_view name;
  std::string_view example;
  std::span<const Unit> units;
  std::span<const Confused> confusions;
};

constexpr Kind kSize{"size", "512 MiB", kSizes, kSizeConfusions};
constexpr Kind kRate{"rate", "40 Mbit/s", kRates, kRateConfusions};
constexpr Kind kSpeed{"compute rate", "1.5 TFLOP/s", kSpeeds, kSpeedConfusions};
constexpr Kind kTime{"time", "10 ms", kTimes, kTimeConfusions};
constexpr Kind kPower{"power", "5 W", kPowers, kPowerConfusions};
constexpr std::array<const Kind*, 5> kKinds{&kSize, &kRate, &kSpeed, &kTime, &kPower};

/// Length of the number that `text` opens with: digits, a point, an exponent; 0 where there is none.
std::size_t number_length(std::string_view text) {
  const auto digits = [&](std::size_t at) {
    std::size_t end = at;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    return end;
  };
  const std::size_t start = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  std::size_t end = digits(start);
  std::size_t count = end - start;
  if (end < text.size() && text[end] == '.') {
    const std::size_t after = digits(end + 1);
    count += after - end - 1;
    end = after;
  }
  if (count == 0) return 0;
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    const std::size_t sign = end + 1 < text.size() && (text[end + 1] == '-' || text[end + 1] == '+') ? 1 : 0;
    const std::size_t after = digits(end + 1 + sign);
    if (after > end + 1 + sign) end = after;
  }
  return end;
}

Parsed<double> number(std::string_view text) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    // from_chars leaves open which way.
    const std::size_t e = text.find_first_of("eE");
    const bool tiny = e != std::string_view::npos ? text[e + 1] == '-' : text.find_first_not_of("-0") == text.find('.');
    return {.message = fmt::format("{} is {}", in_quotes(text), tiny ? "too close to zero" : "too large")};
  }
  if (error != std::errc() || end != text.data() + text.size()) {
    return {.message = fmt::format("{} is not a number", in_quotes(text))};
  }
  return {.value = value};
}

const Unit* find_unit(const Kind& kind, std::string_view name) {
  const auto found = std::find_if(kind.units.begin(), kind.units.end(), [&](const Unit& u) { return u.name == name; });
  return found == kind.units.end() ? nullptr : &*found;
}

std::string with_article(std::string_view noun) { return fmt::format("a {}", noun); }

/// Message and hint for a unit that is none of `kind`.
template <class T>
Parsed<T> wrong_unit(const Kind& kind, std::string_view written) {
  for (const Confused& confused : kind.confusions) {
    if (confused.written == written) {
      return {.message = fmt::format("unit {} is not known", in_quotes(written)),
              .hint = fmt::format("did you mean {}?", confused.meant)};
    }
  }
  for (const Kind* other : kKinds) {
    if (other != &kind && find_unit(*other, written) != nullptr) {
      return {.message = fmt::format("{} is a unit of {}, not of {}", in_quotes(written), other->name, kind.name),
              .hint = fmt::format("for example {}", kind.example)};
    }
  }
  std::vector<std::string> names;
  for (const Unit& unit : kind.units) names.emplace_back(unit.name);
  const std::string near = nearest(written, names);
  return {.message = fmt::format("unit {} is not known", in_quotes(written)),
          .hint = near.empty() ? fmt::format("units of {} are {}", kind.name, joined(names))
                               : fmt::format("did you mean {}?", near)};
}

struct NumberAndUnit {
  std::string_view digits;
  double number;
  const Unit* unit;
};

/// Splits "40 Mbit/s" and refuses all that is wrong with its parts.
Parsed<NumberAndUnit> split(const Kind& kind, std::string_view written) {
  const std::string_view text = trimmed(written);
  const std::size_t length = number_length(text);
  if (length == 0) {
    return {.message = fmt::format("{} is not {}", in_quotes(text), with_article(kind.name)),
            .hint = fmt::format("for example {}", kind.example)};
  }
  const std::string_view digits = text.substr(0, length);
  const std::string_view name = trimmed(text.substr(length));
  const Parsed<double> value = number(digits);
  if (!value.value) return {.message = value.message};
  if (std::signbit(*value.value) && *value.value != 0)
    return {.message = fmt::format("{} is negative", in_quotes(text))};
  if (name.empty()) {
    return {.message = fmt::format("{} has no unit", in_quotes(text)),
            .hint = fmt::format("for example {}", kind.example)};
  }
  const Unit* unit = find_unit(kind, name);
  if (unit == nullptr) return wrong_unit<NumberAndUnit>(kind, name);
  return {.value = NumberAndUnit{digits, std::abs(*value.value), unit}};
}

Parsed<double> parse_base(const Kind& kind, std::string_view text) {
  const Parsed<NumberAndUnit> parts = split(kind, text);
  if (!parts.value) return {.message = parts.message, .hint = parts.hint};
  const double value = parts.value->number * parts.value->unit->factor / parts.value->unit->divisor;
  if (!std::isfinite(value)) return {.message = fmt::format("{} is too large", in_quotes(trimmed(text)))};
  return {.value = value};
}

template <class Q>
Parsed<Q> as(const Parsed<double>& base) {
  if (!base.value) return {.message = base.message, .hint = base.hint};
  return {.value = Q(*base.value)};
}

/// The shortest text, with a number of at least 1 where there is one, that parses to the same value.
std::string render(const Kind& kind, double value) {
  std::string best;
  bool best_small = true;
  for (const Unit& unit : kind.units) {
    if (value == 0 && (unit.factor != 1 || unit.divisor != 1)) continue;
    const double shown = value * unit.divisor / unit.factor;
    const std::string text = fmt::format("{} {}", shown, unit.name);
    if (parse_base(kind, text).value != value) continue;
    const bool small = shown < 1;
    if (best.empty() || std::pair(small, text.size()) < std::pair(best_small, best.size())) {
      best = text;
      best_small = small;
    }
  }
  return best;  // never empty: the base unit (factor and divisor 1) renders every finite value exactly
}

}  // namespace

Parsed<std::int64_t> parse_integer(std::string_view written) {
  const std::string_view text = trimmed(written);
  std::string_view digits = text;
  if (digits.size() > 1 && digits[0] == '+' && digits[1] != '-') digits.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range) {
    return {.message = fmt::format("{} is too {}", in_quotes(text), digits[0] == '-' ? "small" : "large")};
  }
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return {.message = fmt::format("{} is not a whole number", in_quotes(text))};
  }
  return {.value = value};
}

Parsed<double> parse_real(std::string_view written) {
  const std::string_view text = trimmed(written);
  if (text.empty() || number_length(text) != text.size()) {
    return {.message = fmt::format("{} is not a number", in_quotes(text))};
  }
  return number(text);
}

Parsed<Bytes> parse_bytes(std::string_view written) {
  const Parsed<NumberAndUnit> parts = split(kSize, written);
  if (!parts.value) return {.message = parts.message, .hint = parts.hint};
  const auto& [digits, value, unit] = *parts.value;
  const std::string shown = in_quotes(trimmed(written));
  // Whole numbers are converted as such: a double holds 53 bits only.
  if (const Parsed<std::int64_t> whole = parse_integer(digits); whole.value) {
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(*whole.value, static_cast<std::int64_t>(unit->factor), &bytes)) {
      return {.message = shown + " is too large"};
    }
    return {.value = Bytes(bytes)};
  }
  const double bytes = value * unit->factor;
  if (bytes >= 0x1p63) return {.message = shown + " is too large"};
  const double nearest_whole = std::round(bytes);
  // The number was rounded once when read and once when multiplied: half an ulp each.
  if (std::abs(bytes - nearest_whole) > 2 * std::numeric_limits<double>::epsilon() * bytes) {
    return {.message = shown + " is not a whole number of bytes",
            .hint = fmt::format("write {} B", static_cast<std::int64_t>(nearest_whole))};
  }
  return {.value = Bytes(static_cast<std::int64_t>(nearest_whole))};
}

Parsed<BytesPerSecond> parse_rate(std::string_view text, Unlimited unlimited) {
  if (trimmed(text) == "unlimited") {
    if (unlimited == Unlimited::allowed) return {.value = BytesPerSecond(std::numeric_limits<double>::infinity())};
    return {.message = "'unlimited' is not allowed here", .hint = fmt::format("for example {}", kRate.example)};
  }
  return as<BytesPerSecond>(parse_base(kRate, text));
}

Parsed<FlopsPerSecond> parse_compute(std::string_view text) { return as<FlopsPerSecond>(parse_base(kSpeed, text)); }
Parsed<Seconds> parse_seconds(std::string_view text) { return as<Seconds>(parse_base(kTime, text)); }
Parsed<Watts> parse_watts(std::string_view text) { return as<Watts>(parse_base(kPower, text)); }

std::string to_text(std::int64_t value) { return fmt::format("{}", value); }
std::string to_text(double value) { return fmt::format("{}", value); }

std::string to_text(Bytes value) {
  std::string best = fmt::format("{} B", value.value());
  for (const Unit& unit : kSizes) {
    const auto factor = static_cast<std::int64_t>(unit.factor);
    if (value.value() == 0 || value.value() % factor != 0) continue;
    const std::string text = fmt::format("{} {}", value.value() / factor, unit.name);
    if (text.size() < best.size()) best = text;
  }
  return best;
}

std::string to_text(BytesPerSecond value) {
  return std::isinf(value.value()) ? "unlimited" : render(kRate, value.value());
}
std::string to_text(FlopsPerSecond value) { return render(kSpeed, value.value()); }
std::string to_text(Seconds value) { return render(kTime, value.value()); }
std::string to_text(Watts value) { return render(kPower, value.value()); }

}  // namespace cleave::config
