// Units: the table, every way to get one wrong, and that rendered text parses to the same bits.
#include "cleave/config/quantity.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cleave/base/random.hpp"

namespace cleave::config {
namespace {

constexpr std::int64_t kKi = 1024;

template <class T>
std::string fault(const Parsed<T>& parsed) {
  if (parsed.value) return "parsed";
  return parsed.hint.empty() ? parsed.message : parsed.message + " (" + parsed.hint + ")";
}

TEST(Quantity, Sizes) {
  const std::vector<std::pair<const char*, std::int64_t>> table{{"7 B", 7},
                                                                {"0 B", 0},
                                                                {"1 kB", 1000},
                                                                {"2 MB", 2000000},
                                                                {"3GB", 3000000000},
                                                                {"4 TB", 4000000000000},
                                                                {"1 KiB", kKi},
                                                                {"512 MiB", 512 * kKi * kKi},
                                                                {"4  GiB", 4 * kKi * kKi * kKi},
                                                                {" 2 TiB ", 2 * kKi * kKi * kKi * kKi},
                                                                {"1.5 GiB", 3 * kKi * kKi * kKi / 2},
                                                                {"0.1 GB", 100000000},
                                                                {"1e3 MB", 1000000000},
                                                                {"+5 B", 5},
                                                                {".5 kB", 500},
                                                                {"9007199254740993 B", 9007199254740993},
                                                                {"9223372036854775807 B", 9223372036854775807}};
  for (const auto& [text, bytes] : table) EXPECT_EQ(parse_bytes(text).value, Bytes(bytes)) << text;
}

TEST(Quantity, Rates) {
  const std::vector<std::pair<const char*, double>> table{
      {"8 bit/s", 1},          {"1 kbit/s", 125},   {"80 Mbit/s", 1e7},       {"100 Gbit/s", 1.25e10},
      {"1 Tbit/s", 1.25e11},   {"3 B/s", 3},        {"3 kB/s", 3e3},          {"3 MB/s", 3e6},
      {"100 GB/s", 1e11},      {"1 TB/s", 1e12},    {"1 KiB/s", 1024},        {"1 MiB/s", 1048576},
      {"1 GiB/s", 1073741824}, {"1 TiB/s", 0x1p40}, {"0.7 Mbit/s", 0.7e6 / 8}};
  for (const auto& [text, rate] : table) EXPECT_EQ(parse_rate(text).value, BytesPerSecond(rate)) << text;
}

TEST(Quantity, SpeedsTimesPowers) {
  EXPECT_EQ(parse_compute("5 FLOP/s").value, FlopsPerSecond(5));
  EXPECT_EQ(parse_compute("5 kFLOP/s").value, FlopsPerSecond(5e3));
  EXPECT_EQ(parse_compute("5 MFLOP/s").value, FlopsPerSecond(5e6));
  EXPECT_EQ(parse_compute("5 GFLOP/s").value, FlopsPerSecond(5e9));
  EXPECT_EQ(parse_compute("0.7 TFLOP/s").value, FlopsPerSecond(7e11));
  EXPECT_EQ(parse_compute("5 PFLOP/s").value, FlopsPerSecond(5e15));
  EXPECT_EQ(parse_seconds("5 ns").value, Seconds(5e-9));
  EXPECT_EQ(parse_seconds("5 us").value, Seconds(5e-6));
  EXPECT_EQ(parse_seconds("10 ms").value, Seconds(0.01));
  EXPECT_EQ(parse_seconds("0 s").value, Seconds(0));
  EXPECT_EQ(parse_seconds("2.5 s").value, Seconds(2.5));
  EXPECT_EQ(parse_seconds("20 min").value, Seconds(1200));
  EXPECT_EQ(parse_seconds("2 h").value, Seconds(7200));
  EXPECT_EQ(parse_watts("500 mW").value, Watts(0.5));
  EXPECT_EQ(parse_watts("5 W").value, Watts(5));
  EXPECT_EQ(parse_watts("1.2 kW").value, Watts(1200));
}

TEST(Quantity, UnlimitedOnlyWhereAllowed) {
  EXPECT_EQ(parse_rate("unlimited", Unlimited::allowed).value, BytesPerSecond(std::numeric_limits<double>::infinity()));
  EXPECT_EQ(fault(parse_rate("unlimited")), "'unlimited' is not allowed here (for example 40 Mbit/s)");
}

TEST(Quantity, MissingUnit) {
  EXPECT_EQ(fault(parse_bytes("512")), "'512' has no unit (for example 512 MiB)");
  EXPECT_EQ(fault(parse_rate("40")), "'40' has no unit (for example 40 Mbit/s)");
  EXPECT_EQ(fault(parse_compute("1e12")), "'1e12' has no unit (for example 1.5 TFLOP/s)");
  EXPECT_EQ(fault(parse_seconds("0")), "'0' has no unit (for example 10 ms)");
  EXPECT_EQ(fault(parse_watts("5")), "'5' has no unit (for example 5 W)");
}

TEST(Quantity, WrongUnitSuggestsTheRightOne) {
  const std::vector<std::pair<const char*, const char*>> rates{
      {"40 mbps", "unit 'mbps' is not known (did you mean Mbit/s?)"},
      {"40 Mbps", "unit 'Mbps' is not known (did you mean Mbit/s?)"},
      {"40 Mb/s", "unit 'Mb/s' is not known (did you mean Mbit/s or MB/s?)"},
      {"40 MBps", "unit 'MBps' is not known (did you mean MB/s?)"},
      {"40 mbit/s", "unit 'mbit/s' is not known (did you mean Mbit/s?)"},
      {"40 Kbit/s", "unit 'Kbit/s' is not known (did you mean kbit/s?)"},
      {"40 MB", "unit 'MB' is not known (did you mean MB/s?)"},
      {"40 Mbits/s", "unit 'Mbits/s' is not known (did you mean Mbit/s?)"},
      {"40 ms", "'ms' is a unit of time, not of rate (for example 40 Mbit/s)"},
      {"40 furlongs",
       "unit 'furlongs' is not known (units of rate are TB/s, GB/s, MB/s, kB/s, B/s, Tbit/s, Gbit/s, "
       "Mbit/s, kbit/s, bit/s, TiB/s, GiB/s, MiB/s, KiB/s)"}};
  for (const auto& [text, message] : rates) EXPECT_EQ(fault(parse_rate(text)), message);
  EXPECT_EQ(fault(parse_bytes("4 K")), "unit 'K' is not known (did you mean kB or KiB?)");
  EXPECT_EQ(fault(parse_bytes("4 KB")), "unit 'KB' is not known (did you mean kB or KiB?)");
  EXPECT_EQ(fault(parse_bytes("4 G")), "unit 'G' is not known (did you mean GB or GiB?)");
  EXPECT_EQ(fault(parse_bytes("4 gib")), "unit 'gib' is not known (did you mean GiB?)");
  EXPECT_EQ(fault(parse_bytes("4 MB/s")), "'MB/s' is a unit of rate, not of size (for example 512 MiB)");
  EXPECT_EQ(fault(parse_compute("4 TFLOPS")), "unit 'TFLOPS' is not known (did you mean TFLOP/s?)");
  EXPECT_EQ(fault(parse_compute("4 Tflop/s")), "unit 'Tflop/s' is not known (did you mean TFLOP/s?)");
  EXPECT_EQ(fault(parse_seconds("4 sec")), "unit 'sec' is not known (did you mean s?)");
  EXPECT_EQ(fault(parse_seconds("4 m")), "unit 'm' is not known (did you mean min or ms?)");
  EXPECT_EQ(fault(parse_seconds("4 \u00b5s")), "unit '\u00b5s' is not known (did you mean us?)");
  EXPECT_EQ(fault(parse_watts("4 watts")), "unit 'watts' is not known (did you mean W?)");
}

TEST(Quantity, HostileNumbers) {
  EXPECT_EQ(fault(parse_bytes("-5 MB")), "'-5 MB' is negative");
  EXPECT_EQ(fault(parse_rate("-1e-9 B/s")), "'-1e-9 B/s' is negative");
  EXPECT_EQ(fault(parse_bytes("nan B")), "'nan B' is not a size (for example 512 MiB)");
  EXPECT_EQ(fault(parse_seconds("inf s")), "'inf s' is not a time (for example 10 ms)");
  EXPECT_EQ(fault(parse_seconds("")), "'' is not a time (for example 10 ms)");
  EXPECT_EQ(fault(parse_seconds("fast")), "'fast' is not a time (for example 10 ms)");
  EXPECT_EQ(fault(parse_seconds("1e400 s")), "'1e400' is too large");
  EXPECT_EQ(fault(parse_seconds("1e-400 s")), "'1e-400' is too close to zero");
  EXPECT_EQ(fault(parse_seconds("1e308 h")), "'1e308 h' is too large");
  EXPECT_EQ(fault(parse_bytes("99999999999999999999 B")), "'99999999999999999999 B' is too large");
  EXPECT_EQ(fault(parse_bytes("9999999 TiB")), "'9999999 TiB' is too large");
  EXPECT_EQ(fault(parse_bytes("1e300 kB")), "'1e300 kB' is too large");
  EXPECT_EQ(fault(parse_bytes("0x10 B")),
            "unit 'x10 B' is not known (units of size are TiB, TB, GiB, GB, MiB, MB, "
            "KiB, kB, B)");
  EXPECT_EQ(fault(parse_bytes("1,5 GB")),
            "unit ',5 GB' is not known (units of size are TiB, TB, GiB, GB, MiB, MB, KiB, kB, B)");
}

TEST(Quantity, BytesAreWhole) {
  EXPECT_EQ(fault(parse_bytes("0.5 B")), "'0.5 B' is not a whole number of bytes (write 1 B)");
  EXPECT_EQ(fault(parse_bytes("0.7 GiB")), "'0.7 GiB' is not a whole number of bytes (write 751619277 B)");
  EXPECT_EQ(parse_bytes("0.3 GB").value, Bytes(300000000));  // 0.3 * 1e9 is off by a rounding, not by a byte
  EXPECT_EQ(parse_bytes("1.001 kB").value, Bytes(1001));
}

TEST(Quantity, PlainNumbers) {
  EXPECT_EQ(parse_integer("+12").value, 12);
  EXPECT_EQ(parse_integer("-9223372036854775808").value, std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(fault(parse_integer("99999999999999999999")), "'99999999999999999999' is too large");
  EXPECT_EQ(fault(parse_integer("-99999999999999999999")), "'-99999999999999999999' is too small");
  for (const char* text : {"1.5", "1e6", "", "abc", "12x", "0x10", "1_000", "1 000", "--1", "+-1"}) {
    EXPECT_EQ(fault(parse_integer(text)), fmt::format("'{}' is not a whole number", text));
  }
  EXPECT_EQ(parse_real("1e-3").value, 1e-3);
  EXPECT_EQ(parse_real("-2.5E+1").value, -25.0);
  EXPECT_EQ(parse_real(".5").value, 0.5);
  for (const char* text : {"nan", "inf", "-inf", "infinity", "", ".", "1e", "e5", "0x1p3", "1 2", "1,5"}) {
    EXPECT_EQ(fault(parse_real(text)), fmt::format("'{}' is not a number", text));
  }
  EXPECT_EQ(fault(parse_real("1e400")), "'1e400' is too large");
  EXPECT_EQ(fault(parse_real("-1e400")), "'-1e400' is too large");
  EXPECT_EQ(fault(parse_real("1e-400")), "'1e-400' is too close to zero");
  EXPECT_EQ(fault(parse_real(std::string(400, '9') + ".5")), fmt::format("'{:9<40}...' is too large", ""));
}

TEST(Quantity, TextReadsWell) {
  EXPECT_EQ(to_text(Bytes(512 * kKi * kKi)), "512 MiB");
  EXPECT_EQ(to_text(Bytes(500000000)), "500 MB");
  EXPECT_EQ(to_text(Bytes(0)), "0 B");
  EXPECT_EQ(to_text(Bytes(1001)), "1001 B");
  EXPECT_EQ(to_text(FlopsPerSecond(7e11)), "700 GFLOP/s");
  EXPECT_EQ(to_text(FlopsPerSecond(2.2e12)), "2.2 TFLOP/s");
  EXPECT_EQ(to_text(Seconds(0.01)), "10 ms");
  EXPECT_EQ(to_text(Seconds(0)), "0 s");
  EXPECT_EQ(to_text(Seconds(1200)), "20 min");
  EXPECT_EQ(to_text(BytesPerSecond(1e11)), "100 GB/s");
  EXPECT_EQ(to_text(BytesPerSecond(std::numeric_limits<double>::infinity())), "unlimited");
  EXPECT_EQ(to_text(Watts(0.5)), "500 mW");
}

TEST(Quantity, TextParsesToTheSameBits) {
  const Random random(7, Purpose::test);
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const double value = std::exp(random.normal(i) * 12);
    EXPECT_EQ(parse_seconds(to_text(Seconds(value))).value, Seconds(value));
    EXPECT_EQ(parse_rate(to_text(BytesPerSecond(value))).value, BytesPerSecond(value));
    EXPECT_EQ(parse_compute(to_text(FlopsPerSecond(value))).value, FlopsPerSecond(value));
    EXPECT_EQ(parse_watts(to_text(Watts(value))).value, Watts(value));
    EXPECT_EQ(parse_real(to_text(value)).value, value);
    const auto bytes = static_cast<std::int64_t>(random.bits(i) >> (1 + random.below(i, 63)));
    EXPECT_EQ(parse_bytes(to_text(Bytes(bytes))).value, Bytes(bytes));
  }
  EXPECT_EQ(parse_seconds(to_text(Seconds(5e-324))).value, Seconds(5e-324));
  EXPECT_EQ(parse_rate(to_text(BytesPerSecond(1.7e308))).value, BytesPerSecond(1.7e308));
}

}  // namespace
}  // namespace cleave::config
