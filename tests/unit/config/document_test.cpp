// Loading: faults of the file itself, duplicate keys, overrides, and hostile inputs that must end in a clear message.
#include "cleave/config/document.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cleave/config/reader.hpp"

namespace cleave::config {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The faults that loading `text`, and finishing after `read`, comes to.
std::vector<std::string> faults(
    const std::string& text, const std::vector<std::string>& overrides = {},
    const std::function<void(Reader&)>& read = [](Reader&) {}) {
  std::vector<std::string> found;
  try {
    Document document = Document::parse(text, "in.yaml");
    document.apply(overrides);
    Reader reader(std::move(document));
    read(reader);
    reader.finish();
  } catch (const InputError& error) {
    for (const Issue& issue : error.issues()) found.push_back(to_string(issue));
  }
  return found;
}

std::string first_fault(const std::string& text) {
  const std::vector<std::string> found = faults(text);
  return found.empty() ? "none" : found.front();
}

class DocumentFile : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  static std::string load_fault(const fs::path& path) {
    try {
      (void)Document::load(path);
    } catch (const InputError& error) { return error.what(); }
    return "none";
  }
  fs::path folder_ = fs::temp_directory_path() / ("cleave-document-" + std::to_string(::getpid()));
};

TEST_F(DocumentFile, WhatCannotBeRead) {
  EXPECT_EQ(load_fault(folder_ / "none.yaml"),
            (folder_ / "none.yaml").string() + ": cannot be read: No such file or directory");
  EXPECT_EQ(load_fault(folder_), folder_.string() + ": is a folder, not a file");
  EXPECT_EQ(load_fault(write("empty", "")), (folder_ / "empty").string() + ": is empty");
  EXPECT_EQ(load_fault(write("comment", "# nothing\n")), (folder_ / "comment").string() + ": is empty");
  EXPECT_EQ(load_fault("/dev/zero"), "/dev/zero: is larger than 16 MiB");
  EXPECT_EQ(load_fault(write("binary", std::string("a: 1\nb: \0", 9))),
            (folder_ / "binary").string() + ":2: holds the control character 0x00 (is it a text file?)");
  EXPECT_EQ(load_fault(write("latin1", "a: 1\n\nb: caf\xe9\n")),
            (folder_ / "latin1").string() + ":3: is not UTF-8 text");
}

TEST_F(DocumentFile, NamesTheFileAsGiven) {
  write("a.yaml", "train: 5\n");
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  Reader reader(Document::load("a.yaml"));
  fs::current_path(before);
  (void)reader.section("train");
  ASSERT_EQ(reader.issues().size(), 1U);
  EXPECT_EQ(to_string(reader.issues()[0]), "a.yaml:1: train: must be a map of keys, not a single value");
}

// The library meets the fault on the line that follows it.
TEST(Document, SyntaxErrorsOfTheLineBeforeAreNamed) {
  EXPECT_EQ(first_fault("a:\n  b:1\n\n  # next\n  c: 2\n"),
            "in.yaml:5: no YAML: end of map not found (line 2 is no `key: value`; a blank follows the colon)");
  EXPECT_THAT(first_fault("a:\n  b 1\n  c: 2\n"), HasSubstr("(line 2 is no `key: value`"));
  for (const char* text : {"a:\n   b: 1\n  c: 2\n", "a:\n b: 1\n  c: 2\n"})
    EXPECT_THAT(first_fault(text), HasSubstr("(keys of one map begin in one column, those of lines 2 and 3 do not)"));
  EXPECT_THAT(first_fault("a:\n   - {b: 1, c: 2}\n  - {b: 1, c: 2}\n"),
              HasSubstr("(items of one list begin in one column, those of lines 2 and 3 do not)"));
  EXPECT_THAT(first_fault("a: 1: 2\n"), HasSubstr("(put quotes around a value with ': ')"));
}

TEST(Document, SyntaxErrorsHaveAPlace) {
  EXPECT_EQ(first_fault("a: [1, 2\nb: 3\n"), "in.yaml:2: no YAML: end of sequence flow not found (a [ has no ])");
  EXPECT_THAT(first_fault("a: 1\n\tb: 2\n"), HasSubstr("in.yaml:2: no YAML: "));
  EXPECT_THAT(first_fault("a:\n\tb: 2\n"), HasSubstr("(indent with spaces, not tabs)"));
  EXPECT_THAT(first_fault("data:\n  text: *.txt\n"), HasSubstr("(put quotes around text that opens with *)"));
  EXPECT_THAT(first_fault("a: {b: 1\nc: 3\n"), HasSubstr("(a { has no })"));
  EXPECT_EQ(first_fault("- a\n- b\n"), "in.yaml:1: must be a map of keys, such as `train:`");
  EXPECT_EQ(first_fault("just text\n"), "in.yaml:1: must be a map of keys, such as `train:`");
  EXPECT_EQ(first_fault("a: !secret 1\n"), "in.yaml:1: a YAML tag ('!secret') has no meaning here");
  EXPECT_EQ(first_fault("a: 1\n---\nb: 2\n"), "in.yaml: holds more than one YAML document (leave out the lines ---)");
}

TEST(Document, DuplicateAndStrangeKeysAreAllReported) {
  EXPECT_THAT(
      faults("a: 1\nb: {c: 1, c: 2}\na: 2\nl:\n  - {d: 1}\n  - d: 1\n    d: 2\n[x]: 3\n", {},
             [](Reader& reader) {
               EXPECT_EQ(reader.root().integer("a"), 1);
               EXPECT_EQ(reader.section("b").integer("c"), 1);
               reader.root().each("l", {}, [](const Section& s) { EXPECT_EQ(s.integer("d"), 1); });
             }),
      ElementsAre("in.yaml:2: b.c: is given twice (first on line 2)", "in.yaml:3: a: is given twice (first on line 1)",
                  "in.yaml:7: l.1.d: is given twice (first on line 6)", "in.yaml:8: a key must be a word"));
}

TEST(Document, AliasesAreExpanded) {
  Reader reader(Document::parse("a: &x {n: 3}\nb: *x\n", "in.yaml"));
  EXPECT_EQ(reader.section("a").integer("n"), 3);
  EXPECT_EQ(reader.section("b").integer("n"), 3);
  reader.finish();
}

TEST(Document, HostileInputsEndInAMessage) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    bomb += fmt::format("a{0}: &a{0} [", i);
    for (int j = 0; j < 10; ++j) bomb += fmt::format("{}*a{}", j == 0 ? "" : ", ", i - 1);
    bomb += "]\n";
  }
  EXPECT_THAT(first_fault(bomb), HasSubstr("more than 2000000 values (an alias counts as often as it is used)"));

  std::string fat = fmt::format("a: &a {:x<1048576}\nb: [*a", "");
  for (int i = 0; i < 1000; ++i) fat += ", *a";
  EXPECT_THAT(first_fault(fat + "]\n"), HasSubstr("in.yaml:2: more than 2000000 values"));

  std::string chain = "a0: &a0 [x]\n";
  for (int i = 1; i < 100; ++i) { chain += fmt::format("a{0}: &a{0} [*a{1}]\n", i, i - 1); }
  EXPECT_THAT(first_fault(chain), HasSubstr("lists and maps are nested more than 64 deep"));

  EXPECT_EQ(first_fault("a: &a [1, *a]\n"), "in.yaml:1: an alias refers to a value that contains it");
  for (const char* open : {"[", "{a: ", "- "}) {
    std::string deep = "a:\n  ";
    for (int i = 0; i < 20000; ++i) deep += open;
    EXPECT_THAT(first_fault(deep), HasSubstr("in.yaml:2: lists and maps are nested more than 64 deep")) << open;
  }
  EXPECT_EQ(first_fault(fmt::format("a: {:x<16777216}", "")), "in.yaml: is larger than 16 MiB");
}

TEST(Document, AMillionFaultsAreNotListed) {
  std::string unknown, twice = "k: 0\n", values = "l:\n";
  for (int i = 0; i < 50000; ++i) {
    unknown += fmt::format("k{}: 1\n", i);
    twice += "k: 1\n";
    values += "  - {n: x}\n";
  }
  const auto read = [](Reader& reader) {
    (void)reader.root().integer("steps", {.default_value = 1});
    reader.root().each("l", {}, [](const Section& s) { (void)s.integer("n"); });
  };
  std::vector<std::string> found = faults(unknown, {}, read);
  ASSERT_EQ(found.size(), 101U);
  EXPECT_EQ(found[99], "in.yaml:100: k99: unknown key (known here: steps, l)");
  EXPECT_EQ(found[100], "in.yaml: 49900 more faults");
  found = faults(values + unknown, {}, read);
  ASSERT_EQ(found.size(), 101U);
  EXPECT_EQ(found[99], "in.yaml:101: l.99.n: 'x' is not a whole number");
  EXPECT_EQ(found[100], "in.yaml: 99900 more faults");
  found = faults(twice, {}, read);
  ASSERT_EQ(found.size(), 101U);
  EXPECT_EQ(found[99], "in.yaml:101: k: is given twice (first on line 1)");
  EXPECT_EQ(found[100], "in.yaml:102: the many faults above end the reading");
}

TEST(Document, OverridesReplaceAppendAndRemove) {
  Document document =
      Document::parse("train: {steps: 5, lr: 0.1}\nfleet:\n  churn: none\n  devices:\n    - count: 1\n", "in.yaml");
  document.apply({"train.steps=7", "train.steps=8", "train.lr=~", "fleet.devices.0.count=3", "fleet.devices.1.count=4",
                  "fleet.churn.trace=a.yaml", "data.text=*.txt", "data.names=[a, \"b c\"]", "new={x: 1, y: 2}",
                  "note = a: b # c"});
  Reader reader(std::move(document));
  EXPECT_EQ(reader.section("train").integer("steps"), 8);
  EXPECT_EQ(reader.section("train").real("lr", {.default_value = 0.5}), 0.5);
  std::vector<std::int64_t> counts;
  reader.section("fleet").each("devices", {}, [&](const Section& s) { counts.push_back(s.integer("count")); });
  EXPECT_THAT(counts, ElementsAre(3, 4));
  EXPECT_EQ(reader.section("fleet").section("churn").text("trace"), "a.yaml");
  EXPECT_EQ(reader.section("data").text("text"), "*.txt");
  EXPECT_THAT(reader.section("data").texts("names"), ElementsAre("a", "b c"));
  EXPECT_EQ(reader.section("new").integer("x") + reader.section("new").integer("y"), 3);
  EXPECT_EQ(reader.root().text("note"), "a: b # c");
  reader.finish();
}

TEST(Document, OverridesWithFaults) {
  const auto read = [](Reader& reader) {
    reader.section("fleet").each("devices", {}, [](const Section& s) { (void)s.integer("count"); });
    (void)reader.section("train").integer("steps", {.default_value = 1});
  };
  EXPECT_THAT(
      faults("fleet: {devices: [{count: 1}]}\n",
             {"train.steps", "=3", "a..b=1", "train.steps=", "train.steps=[1", "train.stops=3",
              "fleet.devices.2.count=1", "fleet.devices.x=1", "fleet.devices.0x=~", "fleet.devices.1=~",
              "train.stpes=~", "fleet.devices.0.count=many", "train={steps: 1, steps: 2}"},
             read),
      ElementsAre("command line: 'train.steps' is not of the form key=value (for example train.steps=50)",
                  "command line: '=3' is not of the form key=value (for example train.steps=50)",
                  "command line: 'a..b=1' is not of the form key=value (for example train.steps=50)",
                  "command line: train.steps: has no value (train.steps=~ goes back to the default)",
                  "command line: train.steps: no YAML: end of sequence flow not found (a [ has no ])",
                  "command line: fleet.devices.2.count: '2' is no element of the list (it has 1, counted from 0)",
                  "command line: fleet.devices.x: 'x' is no element of the list (it has 1, counted from 0)",
                  "command line: fleet.devices.0x: '0x' is no element of the list (it has 1, counted from 0)",
                  "command line: fleet.devices.1: '1' is no element of the list (it has 1, counted from 0)",
                  "command line: train.steps: is given twice (first on line 1)",
                  "command line: fleet.devices.0.count: 'many' is not a whole number",
                  "command line: train.stops: unknown key (did you mean steps?)",
                  "command line: train.stpes: unknown key (did you mean steps?)"));
}

// What was not there is the default, as what is taken back; a value after it holds.
TEST(Document, OverridesTakeBackWhatWasNotThere) {
  Document document = Document::parse("train: {steps: 5}\n", "in.yaml");
  document.apply({"train.lr=~", "train.batch=~", "train.batch=4", "plan.layout=~", "model=~"});
  Reader reader(std::move(document));
  const Section train = reader.section("train");
  EXPECT_FALSE(train.given("lr"));
  EXPECT_EQ(train.real("lr", {.default_value = 0.5}), 0.5);
  EXPECT_EQ(train.integer("steps"), 5);
  EXPECT_EQ(train.integer("batch"), 4);
  EXPECT_EQ(reader.section("plan").text("layout", {.default_value = "auto"}), "auto");
  EXPECT_EQ(reader.section("model").integer("n_layer", {.default_value = 3}), 3);
  reader.finish();
}

// The fault is of who made a map of a value, not of the line of the value.
TEST(Document, AnOverrideBelowAValueIsTheCommandLines) {
  EXPECT_THAT(faults("train:\n  steps: 5\n", {"train.steps.x=3"},
                     [](Reader& reader) { (void)reader.section("train").integer("steps"); }),
              ElementsAre("command line: train.steps: must be a single value, not a map"));
}

}  // namespace
}  // namespace cleave::config
