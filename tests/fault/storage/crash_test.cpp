// Crash consistency by enumeration: what a run, a resumed run, pruning and going back do to files is recorded; every
// state that a crash may leave is made, and the run goes on from each with --resume auto.
//
// It must end, with the bits of a run that was never disturbed; checkpoints that were reported saved must be there,
// whole, as many as checkpoint.keep promises, and all of a branch that was moved aside; `auto` must go on with the
// branch last run, from the last checkpoint reported; metrics.jsonl must have each step once. In brief every seventh
// state is tried; CLEAVE_FAULT_FULL=1 tries all.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>

#include "cleave/base/error.hpp"
#include "cleave/checkpoint/folder.hpp"
#include "disk.hpp"
#include "run.hpp"

namespace cleave::faults {
namespace {

constexpr int kLast = 10;  // the step that every run is brought to in the end
constexpr int kKeep = 2;

struct Scenario {
  const char* name;
  std::vector<std::vector<std::string>> before;  // runs that end undisturbed
  std::vector<std::string> recorded;             // the run that crashes
  std::vector<int> aside;                        // steps of the earlier branch that must not be lost
  bool other_seed = false;                       // the recorded run is of seed 2, the one before of seed 1
  bool stray = false;                            // the folder holds a file of somebody's own, too
  // A device lies in the last two steps of the run before, which looks at nothing; the recorded one looks at
  // everything.
  bool liar = false;
};

std::ostream& operator<<(std::ostream& out, const Scenario& scenario) { return out << scenario.name; }

std::string step_text(int step) { return "train.steps=" + std::to_string(step); }

const std::vector<std::string> kLooks{"verify.mode=audit", "verify.fraction=1", "verify.rollback=2",
                                      "fleet.churn={trace: LIES}"};

std::vector<std::string> with(std::vector<std::string> some, const std::vector<std::string>& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

// RUN and OTHER stand for the folders, LIES for the trace in which a device lies.
const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all{
      {"first", {}, {step_text(6), "output.dir=RUN"}, {}},
      {"resumed", {{step_text(4), "output.dir=RUN"}}, {step_text(8), "output.dir=RUN", "--resume", "auto"}, {}},
      {"again", {{step_text(4), "output.dir=RUN"}}, {step_text(4), "output.dir=RUN", "train.seed=2"}, {2, 4}, true},
      {"back",
       {{step_text(8), "output.dir=RUN", "checkpoint.keep=9"}},
       {step_text(6), "output.dir=RUN", "--resume", "RUN/checkpoint-2.h5"},
       {4, 6, 8}},
      {"elsewhere",
       {{step_text(6), "output.dir=RUN", "checkpoint.keep=9"}, {step_text(4), "output.dir=OTHER", "train.seed=2"}},
       {step_text(8), "output.dir=RUN", "train.seed=2", "--resume", "OTHER/checkpoint-4.h5"},
       {2, 4, 6},
       true},
      {"beside",
       {{step_text(4), "output.dir=RUN"}},
       {step_text(4), "output.dir=RUN", "train.seed=2"},
       {2, 4},
       true,
       true},
      {"taken_back",
       {{step_text(4), "output.dir=RUN", "verify.mode=audit", "verify.fraction=0", "verify.rollback=2",
         "fleet.churn={trace: LIES}"}},
       with({step_text(8), "output.dir=RUN", "--resume", "auto"}, kLooks),
       {},
       false,
       false,
       true}};
  return all;
}

class Crash : public ::testing::TestWithParam<Scenario> {
 protected:
  std::vector<std::string> words(std::vector<std::string> arguments) const {
    for (std::string& word : arguments) {
      for (const auto& [sign, folder] :
           {std::pair<std::string, fs::path>{"RUN", run_}, {"OTHER", other_}, {"LIES", lies_}}) {
        if (const std::size_t at = word.find(sign); at != std::string::npos)
          word.replace(at, sign.size(), folder.string());
      }
    }
    return arguments;
  }

  Ended train(const std::vector<std::string>& arguments, const Plan& plan = {}) {
    return shop_.train(words(arguments), plan);
  }

  std::uint64_t undisturbed(const std::string& seed) {
    const fs::path folder = shop_.top() / ("undisturbed" + seed);
    const Ended ended = shop_.train({step_text(kLast), "train.seed=" + seed, "output.dir=" + folder.string()});
    EXPECT_EQ(ended.code, 0) << ended.said;
    return bits_of(checkpoint::checkpoint_path(folder, kLast));
  }

  // From this emulated time on the second device lies in everything.
  void lie_from(double seconds) const {
    std::ofstream(lies_) << "events: [{at: " << 1000 * seconds
                         << " ms, device: 1, kind: lie, factor: 1, lie: element}]\n";
  }
  // What the first `steps` take where everybody is honest.
  double time_of(int steps) {
    const fs::path folder = shop_.top() / "honest";
    const Ended ended = shop_.train({step_text(4), "output.dir=" + folder.string()});
    EXPECT_EQ(ended.code, 0) << ended.said;
    return emulated_time(folder, steps);
  }

  // Whole checkpoints in all folders of the world, as "seed:step".
  std::set<std::string> whole() const {
    std::set<std::string> found;
    for (const auto& folder : fs::directory_iterator(world_)) {
      if (!folder.is_directory()) continue;
      for (const auto& file : checkpoint::find_checkpoints(folder.path())) {
        try {
          const checkpoint::Snapshot s = checkpoint::read_snapshot(file.path);
          found.insert(std::to_string(std::get<std::int64_t>(s.state.at("seed"))) + ":" +
                       std::to_string(std::get<std::int64_t>(s.state.at("step"))));
        } catch (const InputError&) {}
      }
    }
    return found;
  }

  Workshop shop_;
  fs::path world_ = shop_.top() / "world", run_ = world_ / "run", other_ = world_ / "other";
  fs::path lies_ = shop_.top() / "lies.yaml";
};

// The first file in which two disks differ.
std::string difference(const Disk& a, const Disk& b) {
  std::set<std::string> names;
  for (const Disk* disk : {&a, &b}) {
    for (const auto& [name, file] : disk->names) names.insert(name);
  }
  const auto show = [](const Disk& disk, const std::string& name) {
    const auto found = disk.names.find(name);
    return found == disk.names.end() ? std::string("absent")
                                     : std::to_string(disk.files.at(found->second).text().size()) + " bytes";
  };
  for (const std::string& name : names) {
    const bool both = a.names.contains(name) && b.names.contains(name);
    if (!both || a.files.at(a.names.at(name)) != b.files.at(b.names.at(name)))
      return name + ": " + show(a, name) + " and " + show(b, name);
  }
  return "folders";
}

int last_number(const std::string& text) {
  const std::size_t begin = text.find_last_not_of("0123456789") + 1;
  return begin < text.size() ? std::stoi(text.substr(begin)) : -1;
}

TEST_P(Crash, EveryStateCanBeGoneOnFrom) {
  const Scenario& s = GetParam();
  fs::create_directories(world_);
  const std::string old_seed = "1", new_seed = s.other_seed ? "2" : "1";
  const std::map<std::string, std::uint64_t> wanted{{"1", undisturbed("1")}, {"2", undisturbed("2")}};
  if (s.liar) lie_from(time_of(2));
  for (const auto& arguments : s.before) {
    const Ended ended = train(arguments);
    ASSERT_EQ(ended.code, 0) << ended.said;
  }
  if (s.liar) {
    const auto bits_after = [&](int step, const fs::path& folder) {
      return bits_of(checkpoint::checkpoint_path(folder, step));
    };
    ASSERT_EQ(bits_after(2, run_), bits_after(2, shop_.top() / "honest")) << "it lied too early";
    ASSERT_NE(bits_after(4, run_), bits_after(4, shop_.top() / "honest")) << "nobody lied";
    lie_from(0);
  }
  if (s.stray) std::ofstream(run_ / "mine.txt") << "somebody's own\n";
  const Disk before = Disk::of(world_);
  const std::set<std::string> whole_before = whole();
  const Ended ended = train(s.recorded, {.root = world_.string()});
  ASSERT_EQ(ended.code, 0) << ended.said;
  const std::vector<Step> steps = shop_.ledger().steps();

  // What is recorded is all that was done, or nothing below means anything.
  Disk after = before;
  for (const Step& step : steps) after.apply(step);
  Disk real = Disk::of(world_);
  // Files that are written with stdio are not followed (calls.cpp): the log, and a trace of which nothing depends.
  for (Disk* disk : {&after, &real}) {
    std::erase_if(disk->names, [](const auto& name) {
      const std::string file = fs::path(name.first).filename();
      return file == "log.txt" || file == "lock" || file == "trace.json";
    });
  }
  ASSERT_EQ(after.digest(), real.digest()) << "the record is not complete: " << difference(after, real);

  int states = 0, tried = 0;
  for_each_crash(before, steps, thorough() ? 8 : 2, [&](const Disk& disk, std::size_t count) {
    if (++states % (thorough() ? 1 : 7) != 0 || HasFailure()) return;
    ++tried;
    SCOPED_TRACE(testing::Message() << s.name << ", state " << states << ", after step " << count << " of "
                                    << steps.size());
    disk.put(world_);

    // What was promised up to here.
    bool begun = false;
    std::vector<int> saved;  // by the recorded run
    for (std::size_t i = 0; i < count; ++i) {
      for (const Said& said : reports(steps[i])) {
        if (said.what == Said::What::saved) saved.push_back(last_number(fs::path(said.file).stem().string()));
        if (said.what == Said::What::resumed) begun = true;
      }
    }
    begun = begun || !saved.empty();
    const std::set<std::string> found = whole();
    for (std::size_t i = saved.size() > kKeep ? saved.size() - kKeep : 0; i < saved.size(); ++i)
      EXPECT_TRUE(found.contains(new_seed + ":" + std::to_string(saved[i])))
          << "reported saved, and lost: " << saved[i];
    for (const int step : s.aside)
      EXPECT_TRUE(found.contains(old_seed + ":" + std::to_string(step))) << "of the earlier branch: " << step;

    std::string seed = new_seed;
    const auto go_on = [&] {
      return train(with({step_text(kLast), "output.dir=RUN", "train.seed=" + seed, "--resume", "auto"},
                        s.liar ? kLooks : std::vector<std::string>{}));
    };
    Ended again = go_on();
    if (again.code == 2 && s.other_seed && !begun && again.said.find("train.seed 1 -> 2") != std::string::npos) {
      seed = old_seed;
      again = go_on();
    }
    ASSERT_EQ(again.code, 0) << again.said;
    EXPECT_EQ(bits_of(checkpoint::checkpoint_path(run_, kLast)), wanted.at(seed)) << again.said;

    const std::size_t at = again.said.find("resuming after step ");
    const int from = at == std::string::npos ? 0 : std::stoi(again.said.substr(at + 20));
    if (!saved.empty()) {
      // A checkpoint may be in place before it is reported.
      EXPECT_GE(from, saved.back()) << again.said;
      EXPECT_LE(from, saved.back() + 2) << "of another branch: " << again.said;
    } else if (begun && std::string(s.name) == "back") {
      EXPECT_LE(from, 4) << "of the branch that was left: " << again.said;
    }
    const std::vector<std::int64_t> lines = metric_steps(run_);
    ASSERT_FALSE(lines.empty());
    if (s.stray) { EXPECT_TRUE(fs::exists(run_ / "mine.txt")); }
    for (std::size_t i = 1; i < lines.size(); ++i) EXPECT_EQ(lines[i], lines[i - 1] + 1) << "metrics.jsonl";
    EXPECT_EQ(lines.back(), kLast);
    if (s.before.size() < 2) { EXPECT_EQ(lines.front(), 1); }
  });
  std::printf("%s: %zu steps of the file system, %d states, %d tried\n", s.name, steps.size(), states, tried);
  EXPECT_GT(tried, 20);
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Crash, ::testing::ValuesIn(scenarios()),
                         [](const auto& chosen) { return std::string(chosen.param.name); });

// The model itself: what is safe, and what is not.
TEST(DiskModel, NamesAndBytesAreSafeOnceSynced) {
  using Kind = Step::Kind;
  const std::vector<Step> steps{{.kind = Kind::create, .file = 1, .path = "a.tmp", .other = {}},
                                {.kind = Kind::write, .file = 1, .path = "a.tmp", .other = "new"},
                                {.kind = Kind::sync_file, .file = 1, .path = "a.tmp", .other = {}},
                                {.kind = Kind::rename, .path = "a.tmp", .other = "a"},
                                {.kind = Kind::sync_folder, .path = "", .other = {}}};
  Disk before;
  before.names["a"] = 9;
  before.files[9] = "old";
  EXPECT_EQ(unsafe_steps(steps, 2), (std::vector<std::size_t>{1, 0}));
  EXPECT_EQ(unsafe_steps(steps, 4), (std::vector<std::size_t>{3, 0}));
  EXPECT_TRUE(unsafe_steps(steps, 5).empty());
  for_each_crash(before, steps, 8, [&](const Disk& disk, std::size_t count) {
    const std::string& a = disk.files.at(disk.names.at("a")).text();
    EXPECT_TRUE(a == "old" || a == "new") << a;
    if (count == 5) { EXPECT_EQ(a, "new"); }
  });
  // Without the sync of the file, a crash may leave the new name on nothing.
  std::vector<Step> careless = steps;
  careless.erase(careless.begin() + 2);
  bool torn = false;
  for_each_crash(before, careless, 8, [&](const Disk& disk, std::size_t) {
    torn = torn || disk.files.at(disk.names.at("a")).text().empty();
  });
  EXPECT_TRUE(torn);
}

}  // namespace
}  // namespace cleave::faults
