// Seeded sequences of runs of two folders (train, resume auto, go back, go on from the other folder), each of which may
// end, be asked to stop, or be killed in any call that touches a file, against a model of a few lines:
//
//   what was reported saved exists, until it is reported deleted, in the folder or in one that it was moved to;
//   `auto` goes on with the branch last run there, from its last checkpoint.
//
// A sequence that fails prints its seed: CLEAVE_FAULT_SEED=N runs that one alone. CLEAVE_FAULT_FULL=1: many more.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "cleave/base/error.hpp"
#include "cleave/base/random.hpp"
#include "cleave/checkpoint/folder.hpp"
#include "run.hpp"

namespace cleave::faults {
namespace {

// A checkpoint by what is in it: a branch that begins anew has a seed of its own.
struct Mark {
  int seed = 0;
  std::int64_t step = 0;
  auto operator<=>(const Mark&) const = default;
};

// What the model knows of a folder.
struct Branch {
  int seed = 0;                                                      // of the branch last run; 0: none
  std::optional<std::int64_t> last;                                  // its last checkpoint
  std::vector<std::pair<int, std::optional<std::int64_t>>> or_else;  // a run that was killed early may not have begun
};

class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : draw_(seed, Purpose::test) {}

  void run(int actions) {
    for (int i = 0; i < actions && !::testing::Test::HasFailure(); ++i) act();
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return draw_.below(index_++, bound); }
  fs::path folder(int which) const { return world_ / (which == 0 ? "a" : "b"); }

  // Not always that of the branch: a run that was killed while it made room for a checkpoint of another folder leaves
  // the newest of the old branch in place, and that one beside it.
  static int seed_of(const fs::path& file) {
    return static_cast<int>(std::get<std::int64_t>(checkpoint::read_snapshot(file).state.at("seed")));
  }

  static std::map<Mark, fs::path> find(const fs::path& world, std::vector<fs::path>* damaged) {
    std::map<Mark, fs::path> found;
    for (const auto& folder : fs::directory_iterator(world)) {
      if (!folder.is_directory()) continue;
      for (const auto& file : checkpoint::find_checkpoints(folder.path())) {
        try {
          const checkpoint::Snapshot s = checkpoint::read_snapshot(file.path);
          found[{static_cast<int>(std::get<std::int64_t>(s.state.at("seed"))),
                 std::get<std::int64_t>(s.state.at("step"))}] = file.path;
        } catch (const InputError&) {
          if (damaged != nullptr) damaged->push_back(file.path);
        }
      }
    }
    return found;
  }

  void act() {
    const int which = static_cast<int>(below(2));
    Branch& branch = branches_[which];
    std::vector<std::string> words{"output.dir=" + folder(which).string()};
    int seed = branch.seed;
    std::optional<std::int64_t> from;  // the step that it must go on from, where it is known
    enum class Deed { anew, automatic, back, elsewhere } deed = static_cast<Deed>(below(4));
    const auto files = checkpoint::find_checkpoints(folder(which)),
               others = checkpoint::find_checkpoints(folder(1 - which));
    if (deed == Deed::back && (files.empty() || branch.or_else.size() > 0)) deed = Deed::automatic;
    if (deed == Deed::elsewhere && (others.empty() || branches_[1 - which].or_else.size() > 0)) deed = Deed::anew;
    if (deed == Deed::automatic && seed == 0) deed = Deed::anew;
    if (deed == Deed::automatic && !branch.or_else.empty()) return settle(which);

    std::string name;
    switch (deed) {
      case Deed::anew:
        seed = ++seeds_;
        name = "anew";
        break;
      case Deed::automatic:
        words.insert(words.end(), {"--resume", "auto"});
        from = branch.last;
        name = "auto";
        break;
      case Deed::back: {
        const auto& file = files[below(files.size())];
        words.insert(words.end(), {"--resume", file.path.string()});
        from = file.step;
        seed = seed_of(file.path);
        name = "back to " + std::to_string(file.step);
        break;
      }
      case Deed::elsewhere: {
        const auto& file = others[below(others.size())];
        words.insert(words.end(), {"--resume", file.path.string()});
        seed = seed_of(file.path);
        from = file.step;
        name = "from the other folder, step " + std::to_string(file.step);
        break;
      }
    }
    const std::int64_t steps = from.value_or(0) + 1 + static_cast<std::int64_t>(below(6));
    words.insert(words.end(), {"train.seed=" + std::to_string(seed), "train.steps=" + std::to_string(steps),
                               "checkpoint.keep=" + std::to_string(1 + below(3))});
    Plan plan{.root = world_.string()};
    if (below(2) == 1) {
      plan.die = true;
      plan.nth = 1 + static_cast<std::int64_t>(below(260));
    }
    told_ += "\n  " + std::string(which == 0 ? "a" : "b") + ": " + name + " to step " + std::to_string(steps) +
             (plan.die ? ", killed in call " + std::to_string(plan.nth) : "");
    SCOPED_TRACE(told_);
    const Ended ended = shop_.train(words, plan);
    const bool killed = shop_.ledger().injected();
    ASSERT_EQ(ended.code, killed ? 137 : 0) << ended.said;

    bool begun = false;
    std::optional<std::int64_t> last = from;
    for (const Step& step : shop_.ledger().steps()) {
      for (const Said& said : reports(step)) {
        const std::string digits =
            said.what == Said::What::resumed ? said.file : fs::path(said.file).stem().string().substr(11);
        const std::int64_t number =
            digits.find_first_not_of("0123456789") == std::string::npos ? std::stoll(digits) : -1;
        begun = true;
        if (said.what == Said::What::resumed && from) {
          EXPECT_EQ(number, *from) << "it went on from another checkpoint";
        }
        if (said.what == Said::What::saved) {
          last = number;
          saved_[{seed, number}] = fs::path(said.file);
        }
        if (said.what == Said::What::deleted) saved_.erase(Mark{seed, number});
      }
    }
    check();
    if (!killed || begun) {
      branch = {seed, last, {}};
      // One more may be in place than was reported.
      if (killed) branch.or_else = {{seed, unreported(folder(which), last)}};
    } else {
      // It was killed before it said a word: the branch before it may stand, or its first checkpoint be in place.
      branch.or_else = {{branch.seed, branch.last}, {seed, unreported(folder(which), last)}};
      branch.seed = seed;
      branch.last = last;
    }
    if (killed) settle(which);
  }

  // The checkpoint that may be in place already, though it was not reported: at most two steps on.
  static std::optional<std::int64_t> unreported(const fs::path& folder, std::optional<std::int64_t> last) {
    const auto files = checkpoint::find_checkpoints(folder);
    return files.empty() || files.front().step > last.value_or(0) + 2 ? last : files.front().step;
  }

  // After a kill: what `auto` goes on with must be one of what the model allows; which one is known after that.
  void settle(int which) {
    Branch& branch = branches_[which];
    const std::optional<checkpoint::CheckpointFile> newest = checkpoint::newest_whole_checkpoint(folder(which)).found;
    std::vector<std::pair<int, std::optional<std::int64_t>>> allowed = branch.or_else;
    allowed.emplace_back(branch.seed, branch.last);
    std::pair<int, std::optional<std::int64_t>> found{branch.seed, std::nullopt};
    if (newest) {
      const checkpoint::Snapshot s = checkpoint::read_snapshot(newest->path);
      found = {static_cast<int>(std::get<std::int64_t>(s.state.at("seed"))), newest->step};
    } else {
      // A folder without checkpoints: a run that began anew, or an old one that had none.
      for (const auto& [seed, last] : allowed) {
        if (!last) found.first = seed;
      }
    }
    SCOPED_TRACE(told_);
    EXPECT_NE(std::find(allowed.begin(), allowed.end(), found), allowed.end())
        << "auto would go on with seed " << found.first << ", step " << (found.second ? *found.second : -1)
        << ", which is not the branch last run";
    branch = {found.second ? found.first : 0, found.second, {}};
  }

  void check() {
    std::vector<fs::path> damaged;
    const std::map<Mark, fs::path> found = find(world_, &damaged);
    for (const auto& [mark, file] : saved_)
      EXPECT_TRUE(found.contains(mark)) << "reported saved as " << file << ", seed " << mark.seed << ", and lost";
    EXPECT_TRUE(damaged.empty()) << damaged.front();
  }

  Workshop shop_;
  fs::path world_ = [this] {
    fs::create_directories(shop_.top() / "world");
    return shop_.top() / "world";
  }();
  Random draw_;
  std::uint64_t index_ = 0;
  int seeds_ = 0;
  Branch branches_[2];
  std::map<Mark, fs::path> saved_;
  std::string told_;
};

TEST(SeveralRuns, LoseNothingAndGoOnWithTheBranchLastRun) {
  const char* only = std::getenv("CLEAVE_FAULT_SEED");
  const std::uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const std::uint64_t count = only != nullptr ? 1 : thorough() ? 1000 : 12;
  for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "CLEAVE_FAULT_SEED=" << seed);
    Sequence(seed).run(12);
  }
}

}  // namespace
}  // namespace cleave::faults
