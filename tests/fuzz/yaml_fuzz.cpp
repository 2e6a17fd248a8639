// Inputs: text becomes a Document; every kind of key is declared on it, overrides included. The part after a NUL byte,
// if there is one, is an override of the command line.
#include <string>
#include <string_view>

#include "cleave/config/reader.hpp"
#include "fuzz.hpp"

namespace {

using namespace cleave;
using config::Section;

enum class Clock { wall, off };

void read_leaf(const Section& in) {
  (void)in.integer("count", {.default_value = 1, .min = 1, .max = 1000});
  (void)in.text("name", {.optional = true});
  (void)in.rate_range("downlink", {.default_value = BytesPerSecond(1e6), .above = BytesPerSecond(0)});
  (void)in.bytes_range("memory", {.default_value = Bytes(1), .min = Bytes(1)});
  (void)in.compute_range("compute", {.default_value = FlopsPerSecond(1e9)});
  (void)in.seconds_range("latency", {.default_value = Seconds(0), .min = Seconds(0)});
  (void)in.watts_range("power", {.default_value = Watts(5)});
  (void)in.real_range("share", {.default_value = 0.5});
}

void read_everything(config::Reader& reader) {
  const Section train = reader.section("train", "");
  (void)train.integer("steps", {.default_value = 10, .min = 0});
  (void)train.real("lr", {.default_value = 1e-3, .above = 0.0, .below = 1.0});
  (void)train.boolean("tie", {.default_value = false});
  (void)train.texts("freeze", {.default_value = std::vector<std::string>{}});
  (void)train.integers("sizes", {.default_value = std::vector<std::int64_t>{1}});
  const Section fleet = reader.section("fleet", "");
  (void)fleet.choice<Clock>("clock", {{"wall", Clock::wall}, {"off", Clock::off}}, {.default_value = Clock::off});
  (void)fleet.rate("nic", {.default_value = BytesPerSecond(1), .unlimited = true});
  (void)fleet.bytes("memory", {.default_value = Bytes(1)});
  (void)fleet.compute("compute", {.default_value = FlopsPerSecond(1)});
  (void)fleet.seconds("patience", {.default_value = Seconds(1)});
  (void)fleet.watts("power", {.default_value = Watts(1)});
  fleet.each("devices", {.min_count = 0}, read_leaf);
  const config::WordOrSection churn = fleet.word_or_section("churn", {"none"}, {.default_value = "none"});
  if (churn.word.empty()) {
    (void)churn.section.path("trace", {.optional = true});
    (void)churn.section.real("lie_fraction", {.default_value = 0.0});
  }
  const Section data = reader.section("data", "");
  (void)data.paths("text", {.default_value = std::vector<std::string>{}});
  (void)data.word_or_path("init", {"random"}, {.default_value = "random"});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t end = all.find('\0');
  fuzz::expect_value_or_refusal([&] {
    config::Document document = config::Document::parse(all.substr(0, end), "fuzz.yaml");
    if (end != std::string_view::npos) document.apply({std::string(all.substr(end + 1))});
    config::Reader reader(std::move(document));
    read_everything(reader);
    reader.finish();
    // What is printed as the effective input can be read again.
    config::Reader again(config::Document::parse(reader.effective_yaml(), "effective.yaml"));
    read_everything(again);
    try {
      again.finish();
    } catch (const InputError&) { __builtin_trap(); }
  });
  return 0;
}
