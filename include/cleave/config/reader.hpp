// Declares and reads the keys of a Document: every key once, with type, unit, range, default and help.
//
// `app` walks its structs and asks for each key; from these calls come the values, all faults at once, the effective
// input and the reference page. A fault never stops the reading: it is noted, the call returns a harmless value (the
// default, else one inside the bounds), and finish() throws them all.
//
//   Reader reader(Document::load("run.yaml"));
//   const Section train = reader.section("train", "How to train.");
//   options.steps = train.integer("steps", {.default_value = 200, .min = 1, .help = "Optimizer steps."});
//   options.clock = train.choice<Clock>("clock", {{"virtual", Clock::modelled}, {"wall", Clock::wall}}, {...});
//   if (options.batch > options.rows) reader.fault("train.batch", "is larger than the text");
//   reader.finish();  // throws InputError with everything found, unknown keys included
//
// A key without default is required unless it is `optional`. A Section must not outlive its Reader.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/base/units.hpp"
#include "cleave/config/document.hpp"

namespace cleave::config {

/// A quantity to be drawn: `[low, high]` in the input, or one value for both.
template <class T>
struct Range {
  T low{};
  T high{};
  constexpr Range() = default;
  constexpr Range(T both) : low(both), high(both) {}  // NOLINT(google-explicit-constructor): a value is a range
  constexpr Range(T l, T h) : low(l), high(h) {}
  constexpr bool operator==(const Range&) const = default;
};

/// How a number or quantity is declared: min <= value <= max, above < value < below.
template <class T, class Default = T>
struct Bounded {
  std::optional<Default> default_value{};
  std::optional<T> min{};
  std::optional<T> max{};
  std::optional<T> above{};
  std::optional<T> below{};
  bool optional = false;   ///< may be left out though it has no default: ask given()
  bool unlimited = false;  ///< rates only: `unlimited` may be written
  std::string help{};
};

/// How any other value is declared.
template <class T>
struct Plain {
  std::optional<T> default_value{};
  bool optional = false;  ///< may be left out though it has no default: ask given()
  std::string help{};
};

/// How a list of maps is declared.
struct Listed {
  std::int64_t min_count = 0;
  std::int64_t max_count = 1'000'000;
  std::string help{};
};

/// A path as written, and made absolute: relative to the input file's folder when it stands in the file, to the
/// current folder when it is an override or a default. Wildcards are left alone.
struct Path {
  std::string written{};
  std::filesystem::path resolved{};
  std::string file{};  ///< where it stands, as an Issue names it; empty for a default
  int line = 0;
};

/// One declared key, for the reference page.
struct Declaration {
  std::string key{};            ///< dotted path; `[]` stands for the index of a list element
  std::string type{};           ///< integer, number, size, rate, ..., "a | b | c", section, list
  std::string unit{};           ///< an example of the unit; empty for none
  std::string default_value{};  ///< as it would be written; empty for none
  std::string range{};          ///< such as ">= 1"; empty for none
  std::string help{};
  bool required = false;
};

struct WordOrSection;
struct WordOrPath;
struct Branch;

/// One map of the input, present or not.
class Section {
 public:
  [[nodiscard]] std::int64_t integer(std::string_view key, const Bounded<std::int64_t>& declared = {}) const;
  [[nodiscard]] double real(std::string_view key, const Bounded<double>& declared = {}) const;
  [[nodiscard]] Bytes bytes(std::string_view key, const Bounded<Bytes>& declared = {}) const;
  [[nodiscard]] BytesPerSecond rate(std::string_view key, const Bounded<BytesPerSecond>& declared = {}) const;
  [[nodiscard]] FlopsPerSecond compute(std::string_view key, const Bounded<FlopsPerSecond>& declared = {}) const;
  [[nodiscard]] Seconds seconds(std::string_view key, const Bounded<Seconds>& declared = {}) const;
  [[nodiscard]] Watts watts(std::string_view key, const Bounded<Watts>& declared = {}) const;

  template <class T>
  using Drawn = Bounded<T, Range<T>>;
  [[nodiscard]] Range<double> real_range(std::string_view key, const Drawn<double>& declared = {}) const;
  [[nodiscard]] Range<Bytes> bytes_range(std::string_view key, const Drawn<Bytes>& declared = {}) const;
  [[nodiscard]] Range<BytesPerSecond> rate_range(std::string_view key,
                                                 const Drawn<BytesPerSecond>& declared = {}) const;
  [[nodiscard]] Range<FlopsPerSecond> compute_range(std::string_view key,
                                                    const Drawn<FlopsPerSecond>& declared = {}) const;
  [[nodiscard]] Range<Seconds> seconds_range(std::string_view key, const Drawn<Seconds>& declared = {}) const;
  [[nodiscard]] Range<Watts> watts_range(std::string_view key, const Drawn<Watts>& declared = {}) const;

  [[nodiscard]] bool boolean(std::string_view key, const Plain<bool>& declared = {}) const;
  [[nodiscard]] std::string text(std::string_view key, const Plain<std::string>& declared = {}) const;
  [[nodiscard]] Path path(std::string_view key, const Plain<std::string>& declared = {}) const;
  /// Lists of scalars; one scalar stands for a list of one.
  [[nodiscard]] std::vector<std::string> texts(std::string_view key,
                                               const Plain<std::vector<std::string>>& declared = {}) const;
  [[nodiscard]] std::vector<Path> paths(std::string_view key,
                                        const Plain<std::vector<std::string>>& declared = {}) const;
  [[nodiscard]] std::vector<std::int64_t> integers(
      std::string_view key, const Bounded<std::int64_t, std::vector<std::int64_t>>& declared = {}) const;

  /// One of several words, as an enum: `choice<Clock>("clock", {{"wall", Clock::wall}, {"off", Clock::off}}, {...})`.
  template <class E>
  [[nodiscard]] E choice(std::string_view key, std::initializer_list<std::pair<const char*, E>> words,
                         const Plain<E>& declared = {}) const {
    return choice<E>(key, std::vector<std::pair<std::string, E>>(words.begin(), words.end()), declared);
  }
  /// The same with words that are known when the program runs, such as a registry's names.
  template <class E>
  [[nodiscard]] E choice(std::string_view key, const std::vector<std::pair<std::string, E>>& words,
                         const Plain<E>& declared = {}) const {
    std::vector<std::string> names;
    std::optional<std::size_t> fallback;
    for (const auto& [name, value] : words) {
      if (declared.default_value && *declared.default_value == value && !fallback) fallback = names.size();
      names.emplace_back(name);
    }
    return (words.begin() + choose(key, names, fallback, declared.optional, declared.help))->second;
  }

  /// The map below `key`; absent or empty is a map in which no key is given.
  [[nodiscard]] Section section(std::string_view key, std::string help = {}) const;
  /// Calls `read` for each element of a list of maps, in order.
  void each(std::string_view key, const Listed& declared, const std::function<void(const Section&)>& read) const;

  /// A word or a map of keys: `churn: none` or `churn: {trace: F}`.
  [[nodiscard]] WordOrSection word_or_section(std::string_view key, const std::vector<std::string>& words,
                                              const Plain<std::string>& declared = {}) const;
  /// A word or else a path: `init: random` or `init: FILE.h5`.
  [[nodiscard]] WordOrPath word_or_path(std::string_view key, const std::vector<std::string>& words,
                                        const Plain<std::string>& declared = {}) const;
  /// Alternatives told apart by which key is given. Exactly one branch is read: that whose `key` is given, else the
  /// one without a key. The keys of other branches beside it are faults, and so is none where each has a key.
  void one_of(const std::vector<Branch>& branches) const;

  [[nodiscard]] bool given(std::string_view key) const;  ///< in the file or on the command line
  [[nodiscard]] bool sound(std::string_view key) const;  ///< no fault noted so far at this key
  /// Notes a fault at the position of `key` (of the section itself where it is empty).
  void fault(std::string_view key, std::string message, std::string hint = {}) const;

 private:
  friend class Reader;
  struct State;  // of the whole reading
  struct Place;  // of this map in the input, among the declarations, and in what is shown
  explicit Section(Place place);

  [[nodiscard]] std::size_t choose(std::string_view key, const std::vector<std::string>& words,
                                   std::optional<std::size_t> fallback, bool optional, const std::string& help) const;

  std::shared_ptr<Place> place_;
};

struct WordOrSection {
  std::string word;  ///< empty where a map was given
  Section section;   ///< has no keys where a word was given
};

struct WordOrPath {
  std::string word;  ///< empty where a path was given
  Path path;
};

struct Branch {
  std::string key{};                    ///< its being given selects the branch; empty: where no other is selected
  std::vector<std::string> own_keys{};  ///< further keys that have a meaning in this branch only
  std::function<void(const Section&)> read{};
};

/// The root of the input, and what is known when all has been read.
class Reader {
 public:
  explicit Reader(Document document);
  /// A reader without input, for the reference page: each() runs once, word_or_section() yields a map, one_of() runs
  /// every branch, and nothing is a fault.
  [[nodiscard]] static Reader for_reference();
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;
  ~Reader();

  [[nodiscard]] const Section& root() const;
  [[nodiscard]] Section section(std::string_view key, std::string help = {}) const {
    return root().section(key, std::move(help));
  }

  /// Notes a fault at the position of a dotted path (of the nearest map around it where the key is not given).
  void fault(std::string_view path, std::string message, std::string hint = {});
  /// The same as a value, for what shows only after the reading.
  [[nodiscard]] Issue issue(std::string_view path, std::string message, std::string hint = {}) const;
  /// What was found so far, in order of file and line.
  [[nodiscard]] std::vector<Issue> issues() const;
  /// Adds the keys that nobody asked for, with the nearest legal name. Errors: InputError with all faults found.
  void finish();

  /// Every declared key and its value as YAML, each marked `# default`, `# file` or `# command line`. Paths come out
  /// absolute: the text means the same wherever it is stored. Optional keys that are not given are left out.
  [[nodiscard]] std::string effective_yaml() const;
  /// The declarations met, in order.
  [[nodiscard]] std::vector<Declaration> describe() const;

 private:
  std::unique_ptr<Section::State> state_;
  std::optional<Section> root_;
};

/// Whether a text is the effective YAML of some input: it tells of defaults, which every input leaves some of.
[[nodiscard]] bool is_effective_yaml(std::string_view text);

}  // namespace cleave::config
