// Reading into structs: every kind of fault in its exact words, many at once, alternatives, paths, effective input.
#include "cleave/config/reader.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

namespace cleave::config {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

enum class Clock { modelled, wall, off };

struct Group {
  std::string name;
  std::int64_t count = 0;
  Range<FlopsPerSecond> compute;
  Range<Bytes> memory;
  Range<BytesPerSecond> uplink;
  Range<Seconds> latency;
  Range<Watts> power;
  bool operator==(const Group&) const = default;
};

/// A stand-in for the program's own structs, with every kind of key.
struct Input {
  std::string preset, family, init_word, churn_word;
  fs::path init, trace, text, dir;
  std::vector<fs::path> files;
  std::int64_t n_layer = 0, steps = 0;
  double lr = 0, slow_fraction = 0;
  bool tie = false;
  std::vector<std::string> freeze;
  std::vector<std::int64_t> at;
  Clock clock{};
  Seconds mean_session;
  Bytes cache;
  BytesPerSecond nic;
  std::vector<Group> groups;
  bool operator==(const Input&) const = default;
};

Input read_input(Reader& reader) {
  Input input;
  const Section model = reader.section("model", "The architecture.");
  model.one_of({{.key = "preset", .read = [&](const Section& s) { input.preset = s.text("preset"); }},
                {.own_keys = {"family", "n_layer"}, .read = [&](const Section& s) {
                   input.family = s.text("family", {.default_value = "gpt2"});
                   input.n_layer = s.integer("n_layer", {.default_value = 4, .min = 1, .max = 1000});
                 }}});
  input.tie = model.boolean("tie_embeddings", {.default_value = true, .help = "One matrix for both ends."});
  const WordOrPath init = model.word_or_path("init", {"random"}, {.default_value = "random"});
  input.init_word = init.word;
  input.init = init.path.resolved;

  const Section train = reader.section("train");
  input.steps = train.integer("steps", {.min = 1, .help = "Optimizer steps."});
  input.lr = train.real("lr", {.default_value = 1e-3, .above = 0, .below = 1});
  input.freeze = train.texts("freeze", {.default_value = std::vector<std::string>{}});
  input.at = train.integers("at", {.default_value = std::vector<std::int64_t>{1, 2}, .min = 0});
  if (train.given("trace")) input.trace = train.path("trace", {.optional = true}).resolved;

  const Section fleet = reader.section("fleet");
  input.clock = fleet.choice<Clock>("clock", {{"virtual", Clock::modelled}, {"wall", Clock::wall}, {"off", Clock::off}},
                                    {.default_value = Clock::modelled});
  const WordOrSection churn = fleet.word_or_section("churn", {"none"}, {.default_value = "none"});
  input.churn_word = churn.word;
  if (churn.word.empty()) {
    churn.section.one_of({{.key = "trace", .read = [&](const Section& s) { input.trace = s.path("trace").resolved; }},
                          {.own_keys = {"mean_session", "slow_fraction"}, .read = [&](const Section& s) {
                             input.mean_session =
                                 s.seconds("mean_session", {.default_value = Seconds(1200), .above = Seconds(0)});
                             input.slow_fraction = s.real("slow_fraction", {.default_value = 0, .min = 0, .max = 1});
                           }}});
  }
  fleet.each("devices", {.min_count = 1, .help = "Groups of devices."}, [&](const Section& s) {
    Group group;
    group.name = s.text("name", {.default_value = "device"});
    group.count = s.integer("count", {.default_value = 1, .min = 1, .max = 1000000});
    group.compute = s.compute_range("compute", {.above = FlopsPerSecond(0)});
    group.memory = s.bytes_range("memory", {.default_value = Range(Bytes(1 << 29)), .min = Bytes(1)});
    group.uplink = s.rate_range("uplink", {.default_value = Range(BytesPerSecond(5e6), BytesPerSecond(1e7)),
                                           .above = BytesPerSecond(0),
                                           .unlimited = true});
    group.latency = s.seconds_range("latency", {.default_value = Range(Seconds(0.01))});
    group.power = s.watts_range("power_idle", {.default_value = Range(Watts(0.5))});
    input.groups.push_back(group);
  });
  const Section server = reader.section("server");
  input.cache = server.bytes("cache", {.default_value = Bytes(500000000)});
  input.nic = server.rate("nic_out", {.default_value = BytesPerSecond(1.25e10), .unlimited = true});
  const Section data = reader.section("data");
  for (const Path& path : data.paths("text", {.default_value = std::vector<std::string>{"a.txt"}})) {
    input.files.push_back(path.resolved);
  }
  input.dir = data.path("dir", {.default_value = "runs/x"}).resolved;
  return input;
}

constexpr const char* kSmallest = "train: {steps: 5}\nfleet: {devices: [{compute: 1 TFLOP/s}]}\n";

struct Outcome {
  Input input;
  std::vector<std::string> faults;
  std::string effective;
};

Outcome run(const std::string& text, const std::vector<std::string>& overrides = {}) {
  Outcome outcome;
  Document document = Document::parse(text, "in.yaml", "/cleave/inputs");
  document.apply(overrides);
  Reader reader(std::move(document));
  outcome.input = read_input(reader);
  outcome.effective = reader.effective_yaml();
  try {
    reader.finish();
  } catch (const InputError& error) {
    for (const Issue& issue : error.issues()) outcome.faults.push_back(to_string(issue));
  }
  return outcome;
}

TEST(Reader, DefaultsHold) {
  const Outcome outcome = run(kSmallest);
  EXPECT_THAT(outcome.faults, IsEmpty());
  const Input& input = outcome.input;
  EXPECT_EQ(input.steps, 5);
  EXPECT_EQ(input.n_layer, 4);
  EXPECT_TRUE(input.tie);
  EXPECT_EQ(input.init_word, "random");
  EXPECT_EQ(input.churn_word, "none");
  EXPECT_THAT(input.at, ElementsAre(1, 2));
  EXPECT_EQ(input.clock, Clock::modelled);
  ASSERT_EQ(input.groups.size(), 1U);
  EXPECT_EQ(input.groups[0].compute, Range(FlopsPerSecond(1e12)));
  EXPECT_EQ(input.groups[0].uplink, Range(BytesPerSecond(5e6), BytesPerSecond(1e7)));
}

// A terminal of another encoding; in a file no byte of that kind is accepted.
TEST(Reader, TextOfTheCommandLineIsUtf8) {
  EXPECT_THAT(run(kSmallest, {"model.preset=caf\xe9"}).faults,
              Contains(HasSubstr("command line: model.preset: is not UTF-8 text")));
  EXPECT_THAT(run(kSmallest, {"model.preset=caf\xc3\xa9"}).faults, Not(Contains(HasSubstr("UTF-8"))));
  EXPECT_THAT(run(kSmallest, {"data.dir=caf\xe9"}).faults, IsEmpty());
}

TEST(Reader, ValuesAreRead) {
  const Input input = run(R"(
model: {preset: opt-13b, tie_embeddings: false, init: start.h5}
train:
  steps: 12
  lr: 6e-4
  freeze: wte.*
  at: [3, 4]
fleet:
  clock: off
  churn: {mean_session: 2 h, slow_fraction: 0.25}
  devices:
    - {name: phone, count: 6, compute: [0.7 TFLOP/s, 2.2 TFLOP/s], memory: [1 GB, 2 GB], uplink: unlimited,
       latency: 5 ms, power_idle: 250 mW}
    - compute: 4 TFLOP/s
server: {cache: 1 KiB, nic_out: unlimited}
)")
                          .input;
  EXPECT_EQ(input.preset, "opt-13b");
  EXPECT_FALSE(input.tie);
  EXPECT_EQ(input.init_word, "");
  EXPECT_EQ(input.init, "/cleave/inputs/start.h5");
  EXPECT_EQ(input.lr, 6e-4);
  EXPECT_THAT(input.freeze, ElementsAre("wte.*"));
  EXPECT_THAT(input.at, ElementsAre(3, 4));
  EXPECT_EQ(input.clock, Clock::off);
  EXPECT_EQ(input.churn_word, "");
  EXPECT_EQ(input.mean_session, Seconds(7200));
  EXPECT_EQ(input.slow_fraction, 0.25);
  ASSERT_EQ(input.groups.size(), 2U);
  EXPECT_EQ(input.groups[0].compute, Range(FlopsPerSecond(7e11), FlopsPerSecond(2.2e12)));
  EXPECT_EQ(input.groups[0].memory, Range(Bytes(1000000000), Bytes(2000000000)));
  EXPECT_TRUE(std::isinf(input.groups[0].uplink.low.value()));
  EXPECT_EQ(input.groups[0].latency, Range(Seconds(0.005)));
  EXPECT_EQ(input.groups[0].power, Range(Watts(0.25)));
  EXPECT_EQ(input.cache, Bytes(1024));
  EXPECT_TRUE(std::isinf(input.nic.value()));
}

TEST(Reader, AllFaultsAtOnceInOrderOfLines) {
  const Outcome outcome = run(R"(model: {n_layer: 0, tie_embeddings: yes}
train:
  step: 5
  lr: 1
  freeze: {a: 1}
  at: [1, x, -1, [2]]
fleet:
  clock: virtal
  churn: nope
  devices:
    - {name: phone, count: -3, compute: 4, memory: [2 GB, 1 GB], uplink: [1 MB/s, unlimited]}
    - 7
    - {compute: [1 TFLOP/s], memory: {a: 1}, uplink: 40 Mb/s, latency: , lattency: 1 ms}
    - {compute: 0 FLOP/s}
server: 3
data: {text: [a.txt, ""], dir: [x]}
steps: 5
optimiser: adam
)",
                              {"train.lr=fast", "fleet.dvices.0.count=3"});
  EXPECT_THAT(
      outcome.faults,
      ElementsAre(
          "in.yaml:1: model.n_layer: '0' is too small (at least 1)",
          "in.yaml:1: model.tie_embeddings: 'yes' is none of true, false",
          "in.yaml:2: train.steps: is missing (Optimizer steps.)",
          "in.yaml:3: train.step: unknown key (did you mean steps?)",
          "in.yaml:5: train.freeze: must be a list, not a map", "in.yaml:6: train.at.1: 'x' is not a whole number",
          "in.yaml:6: train.at.2: '-1' is too small (at least 0)",
          "in.yaml:6: train.at.3: must be a single value, not a list",
          "in.yaml:8: fleet.clock: 'virtal' is none of virtual, wall, off (did you mean virtual?)",
          "in.yaml:9: fleet.churn: 'nope' is neither none nor a map of keys (did you mean none?)",
          "in.yaml:11: fleet.devices.0.count: '-3' is too small (at least 1)",
          "in.yaml:11: fleet.devices.0.compute: '4' has no unit (for example 1.5 TFLOP/s)",
          "in.yaml:11: fleet.devices.0.memory: the range runs from '2 GB' down to '1 GB' ([low, high])",
          "in.yaml:11: fleet.devices.0.uplink.1: 'unlimited' is not allowed here (for example 40 Mbit/s)",
          "in.yaml:12: fleet.devices.1: must be a map of keys, not a single value",
          "in.yaml:13: fleet.devices.2.compute: a range has two ends, not 1 ([low, high])",
          "in.yaml:13: fleet.devices.2.memory: must be a single value, not a map",
          "in.yaml:13: fleet.devices.2.uplink: unit 'Mb/s' is not known (did you mean Mbit/s or MB/s?)",
          "in.yaml:13: fleet.devices.2.latency: has no value (leave the key out to have its default)",
          "in.yaml:13: fleet.devices.2.lattency: unknown key (did you mean latency?)",
          "in.yaml:14: fleet.devices.3.compute: '0 FLOP/s' is too small (more than 0 FLOP/s)",
          "in.yaml:15: server: must be a map of keys, not a single value", "in.yaml:16: data.text: holds an empty path",
          "in.yaml:16: data.dir: must be a single value, not a list",
          "in.yaml:17: steps: unknown key (did you mean train.steps?)",
          "in.yaml:18: optimiser: unknown key (known here: model, train, fleet, server, data)",
          "command line: train.lr: 'fast' is not a number",
          "command line: fleet.dvices: unknown key (did you mean devices?)"));
  // Each gave a harmless value: the default, or one inside the bounds.
  EXPECT_EQ(outcome.input.n_layer, 4);
  EXPECT_EQ(outcome.input.steps, 1);
  EXPECT_EQ(outcome.input.groups.size(), 3U);
  EXPECT_EQ(outcome.input.groups[0].memory, Range(Bytes(1 << 29)));
}

TEST(Reader, MissingSectionsAndLists) {
  EXPECT_THAT(run("train: {steps: 1}\n").faults,
              ElementsAre("in.yaml: fleet.devices: is missing (Groups of devices.)"));
  EXPECT_THAT(run("train: {steps: 1}\nfleet: {devices: []}\n").faults,
              ElementsAre("in.yaml:2: fleet.devices: has 0 elements (at least 1)"));
  EXPECT_THAT(
      run("train: {steps: 1}\nfleet: {devices: {compute: 1 TFLOP/s}}\n").faults,
      ElementsAre("in.yaml:2: fleet.devices: must be a list, not a map of keys (each element opens with a dash)"));
  EXPECT_THAT(run("train: {steps: 1}\nfleet:\n  devices:\n").faults,
              ElementsAre("in.yaml:3: fleet.devices: has no value"));
  EXPECT_THAT(run("train:\nfleet: {devices: [{compute: 1 TFLOP/s}]}\n").faults,
              ElementsAre("in.yaml: train.steps: is missing (Optimizer steps.)"));
}

TEST(Reader, Alternatives) {
  const std::string head = kSmallest;
  EXPECT_THAT(run(head + "model: {preset: a, n_layer: 3}\n").faults,
              ElementsAre("in.yaml:3: model.n_layer: cannot stand beside preset (leave one of them out)"));
  const std::string fleet = "train: {steps: 5}\nfleet: {devices: [{compute: 1 TFLOP/s}], churn: ";
  EXPECT_EQ(run(fleet + "{trace: t.yaml}}\n").input.trace, "/cleave/inputs/t.yaml");
  EXPECT_THAT(run(fleet + "{trace: t.yaml, mean_session: 3 s}}\n").faults,
              ElementsAre("in.yaml:2: fleet.churn.mean_session: cannot stand beside trace (leave one of them out)"));
  EXPECT_EQ(run(fleet + "{}}\n").input.mean_session, Seconds(1200));
  EXPECT_THAT(run(fleet + "{tarce: t}}\n").faults,
              ElementsAre("in.yaml:2: fleet.churn.tarce: unknown key (did you mean trace?)"));

  Reader reader(Document::parse("data: {tokenizer: byte}\n", "in.yaml"));
  bool read = false;
  const Branch text{.key = "text", .own_keys = {"tokenizer"}, .read = [&](const Section&) { read = true; }};
  const Branch tokens{.key = "tokens", .read = [&](const Section&) { read = true; }};
  reader.section("data").one_of({text, tokens});
  EXPECT_FALSE(read);
  ASSERT_EQ(reader.issues().size(), 1U);
  EXPECT_EQ(to_string(reader.issues()[0]), "in.yaml:1: data: needs one of text or tokens");
}

TEST(Reader, CrossChecksStandAtTheirKey) {
  Document document =
      Document::parse("train:\n  steps: 5\n  lr: 2\nfleet:\n  devices:\n    - {}\n    - {count: 3}\n", "in.yaml");
  document.apply({"train.lr=3"});
  Reader reader(std::move(document));
  reader.fault("fleet.devices.1.count", "is odd", "make it even");
  reader.fault("fleet.devices.1.memory", "is too small for a block");
  reader.fault("train.lr", "is steep");
  reader.fault("server.nic", "is slow");
  const Section train = reader.section("train");
  EXPECT_TRUE(train.sound("steps"));
  train.fault("steps", "is few");
  EXPECT_FALSE(train.sound("steps"));
  EXPECT_FALSE(train.sound("lr"));
  train.fault("", "is incomplete");
  std::vector<std::string> faults;
  for (const Issue& issue : reader.issues()) faults.push_back(to_string(issue));
  EXPECT_THAT(
      faults,
      ElementsAre("in.yaml: server.nic: is slow", "in.yaml:1: train: is incomplete", "in.yaml:2: train.steps: is few",
                  "in.yaml:7: fleet.devices.1.count: is odd (make it even)",
                  "in.yaml:7: fleet.devices.1.memory: is too small for a block", "command line: train.lr: is steep"));
}

TEST(Reader, PathsAreRelativeToWhereTheyStand) {
  const Outcome outcome =
      run("train: {steps: 5, trace: ./../up/./a.bin}\nfleet: {devices: [{compute: 1 TFLOP/s}]}\n"
          "data: {text: [sub/b.txt, /abs/c.txt, ../../docs/*.md, x/../y]}\n",
          {"model.init=start.h5"});
  EXPECT_THAT(outcome.faults, IsEmpty());
  EXPECT_EQ(outcome.input.trace, "/cleave/up/./a.bin");
  EXPECT_THAT(outcome.input.files,
              ElementsAre("/cleave/inputs/sub/b.txt", "/abs/c.txt", "/docs/*.md", "/cleave/inputs/x/../y"));
  EXPECT_EQ(outcome.input.init, fs::current_path() / "start.h5");
  EXPECT_EQ(outcome.input.dir, fs::current_path() / "runs/x");

  Document document = Document::parse("a: b/c.txt\nl:\n  - x\n  - y\n", "in.yaml", "/f");
  document.apply({"l.0=z"});
  Reader reader(std::move(document));
  EXPECT_EQ(reader.root().path("a").written, "b/c.txt");
  const std::vector<Path> places = reader.root().paths("l");
  ASSERT_EQ(places.size(), 2U);
  EXPECT_EQ(fmt::format("{}:{}", places[0].file, places[0].line), "command line:0");
  EXPECT_EQ(fmt::format("{}:{}", places[1].file, places[1].line), "in.yaml:4");
  EXPECT_EQ(reader.root().path("d", {.default_value = "e"}).file, "");
}

// What a key is without a word about it may also be said.
TEST(Reader, AListOfPathsIsEmptyWhereItsDefaultIs) {
  for (const bool by_default : {true, false}) {
    Reader reader(Document::parse("l: []\n", "in.yaml"));
    config::Plain<std::vector<std::string>> declared{.optional = true};
    if (by_default) declared.default_value.emplace();
    EXPECT_THAT(reader.root().paths("l", declared), IsEmpty());
    if (by_default) {
      EXPECT_NO_THROW(reader.finish());
    } else {
      EXPECT_THROW(reader.finish(), InputError);
    }
  }
}

TEST(Reader, EffectiveInputMarksOrigins) {
  const Outcome outcome = run("train: {steps: 5}\nfleet:\n  devices:\n    - {compute: 1 TFLOP/s, name: \"a: b\"}\n",
                              {"train.lr=0.5", "fleet.devices.0.uplink=[1 MB/s, 2 MB/s]", "data.dir=/out"});
  EXPECT_EQ(outcome.effective, fmt::format(R"(model:
  family: gpt2  # default
  n_layer: 4  # default
  tie_embeddings: true  # default
  init: random  # default
train:
  steps: 5  # file
  lr: 0.5  # command line
  freeze: []  # default
  at: [1, 2]  # default
fleet:
  clock: virtual  # default
  churn: none  # default
  devices:
    - name: "a: b"  # file
      count: 1  # default
      compute: 1 TFLOP/s  # file
      memory: 512 MiB  # default
      uplink: [1 MB/s, 2 MB/s]  # command line
      latency: 10 ms  # default
      power_idle: 500 mW  # default
server:
  cache: 500 MB  # default
  nic_out: 12.5 GB/s  # default
data:
  text: [{}/a.txt]  # default
  dir: /out  # command line
)",
                                           fs::current_path().string()));
}

// For what shows only when the reading is over.
TEST(Reader, AnIssueSaysWhereItsKeyStands) {
  Document document = Document::parse("model: {n_layer: 2}\ntrain:\n  steps: 5\n", "in.yaml");
  document.apply({"train.lr=0.1"});
  const Reader reader(std::move(document));
  EXPECT_EQ(to_string(reader.issue("train.steps", "too many", "fewer")), "in.yaml:3: train.steps: too many (fewer)");
  EXPECT_EQ(to_string(reader.issue("train.lr", "too high")), "command line: train.lr: too high");
  EXPECT_EQ(to_string(reader.issue("train.freeze", "nothing is left")), "in.yaml:2: train.freeze: nothing is left");
  EXPECT_EQ(to_string(reader.issue("server.cache", "too small")), "in.yaml: server.cache: too small");
  EXPECT_TRUE(reader.issues().empty());
}

TEST(Reader, EffectiveInputReadsBackAlike) {
  for (const std::string& text :
       {std::string(kSmallest),
        std::string(
            "train: {steps: 5, lr: 1e-5, freeze: [a, '', \"q\\\"\\\\\\n\", 'null', 'no', '~', ' x ', '#', '-', "
            "'é', '1.5', '- a', 'a: b', '*', '...', 'a:', '{}', \"\\t\"]}\n"
            "fleet: {devices: [{compute: [0.7 TFLOP/s, 2.2 TFLOP/s], uplink: unlimited}, {compute: 3 GFLOP/s}], "
            "churn: {mean_session: 0.1 h}}\nmodel: {preset: 'off', init: '../a b.h5'}\n"
            "data: {text: ['x y', '*.md'], dir: out}\n"),
        std::string("train: {steps: 5}\nfleet: {devices: [{compute: 1 TFLOP/s}], churn: {trace: t.yaml}}\n"
                    "model: {n_layer: 7}\n")}) {
    const Outcome first = run(text);
    EXPECT_THAT(first.faults, IsEmpty());
    Reader reader(Document::parse(first.effective, "again.yaml", "/elsewhere"));
    EXPECT_EQ(read_input(reader), first.input) << first.effective;
    EXPECT_NO_THROW(reader.finish());
  }
}

TEST(Reader, ReferenceListsEveryDeclarationOnce) {
  Reader reader = Reader::for_reference();
  (void)read_input(reader);
  EXPECT_NO_THROW(reader.finish());
  std::vector<std::string> lines;
  for (const Declaration& d : reader.describe()) {
    lines.push_back(fmt::format("{}|{}|{}|{}|{}{}", d.key, d.type, d.unit, d.default_value, d.range,
                                d.required ? "|required" : ""));
  }
  EXPECT_THAT(
      lines, ElementsAre("model|section|||", "model.preset|text||||required", "model.family|text||gpt2|",
                         "model.n_layer|integer||4|>= 1, <= 1000", "model.tie_embeddings|true | false||true|",
                         "model.init|random | path||random|", "train|section|||", "train.steps|integer|||>= 1|required",
                         "train.lr|number||0.001|> 0, < 1", "train.freeze|list of text||[]|",
                         "train.at|list of integer||[1, 2]|>= 0", "fleet|section|||",
                         "fleet.clock|virtual | wall | off||virtual|", "fleet.churn|none | {keys}||none|",
                         "fleet.churn.trace|path||||required", "fleet.churn.mean_session|time|10 ms|20 min|> 0 s",
                         "fleet.churn.slow_fraction|number||0|>= 0, <= 1", "fleet.devices|list||||required",
                         "fleet.devices[].name|text||device|", "fleet.devices[].count|integer||1|>= 1, <= 1000000",
                         "fleet.devices[].compute|compute rate or [low, high]|1.5 TFLOP/s||> 0 FLOP/s|required",
                         "fleet.devices[].memory|size or [low, high]|512 MiB|512 MiB|>= 1 B",
                         "fleet.devices[].uplink|rate or [low, high] or unlimited|40 Mbit/s|[5 MB/s, 10 MB/s]|> 0 B/s",
                         "fleet.devices[].latency|time or [low, high]|10 ms|10 ms|",
                         "fleet.devices[].power_idle|power or [low, high]|5 W|500 mW|", "server|section|||",
                         "server.cache|size|512 MiB|500 MB|", "server.nic_out|rate or unlimited|40 Mbit/s|12.5 GB/s|",
                         "data|section|||", "data.text|list of paths||[a.txt]|", "data.dir|path||runs/x|"));
}

}  // namespace
}  // namespace cleave::config
