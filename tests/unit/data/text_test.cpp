// Files, folders and globs: what is taken, in which order, and what is said about the rest.
#include "cleave/data/text.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "temp_folder.hpp"

namespace cleave::data {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LoadText : public TempFolder {
 protected:
  SourceEntry entry(const std::string& name, int line = 7) const {
    return SourceEntry{.as_written = name, .resolved = folder_ / name, .file = "input.yaml", .line = line};
  }
  Text load(const std::vector<SourceEntry>& entries) { return load_text(entries, "data.text", issues_); }
  std::vector<std::string> names(const Text& text) const {
    std::vector<std::string> out;
    for (const TextPart& part : text.parts) out.push_back(part.path.lexically_relative(folder_).string());
    return out;
  }
  std::vector<Issue> issues_;
};

TEST_F(LoadText, JoinsEntriesInTheOrderGiven) {
  write("b.txt", "second ");
  write("a.txt", "first ");
  const Text text = load({entry("b.txt"), entry("a.txt")});
  EXPECT_THAT(issues_, IsEmpty());
  EXPECT_EQ(text.bytes, "second first ");
  ASSERT_THAT(text.parts, SizeIs(2));
  EXPECT_EQ(text.parts[1].begin, 7);
  EXPECT_EQ(text.parts[1].size, 6);
}

TEST_F(LoadText, FolderIsSearchedInOrderOfPaths) {
  for (const char* name : {"d/z.txt", "d/a/2.txt", "d/a/10.txt", "d/a.txt", "d/B.txt"}) write(name, name);
  EXPECT_THAT(names(load({entry("d")})), ElementsAre("d/B.txt", "d/a/10.txt", "d/a/2.txt", "d/a.txt", "d/z.txt"));
  EXPECT_THAT(issues_, IsEmpty());
}

TEST_F(LoadText, FolderPassesOverBinariesHiddenFilesAndWhatBuildsMake) {
  write("d/keep.txt", "text");
  write("d/program", std::string_view("\x7f"
                                      "ELF\0\0",
                                      6));
  for (const char* name : {"d/.hidden", "d/.git/config", "d/build/log.txt", "d/sub/build/x", "d/runs/r/log.txt"}) {
    write(name, "no");
  }
  write("d/sub/runs", "a file called runs");
  EXPECT_THAT(names(load({entry("d")})), ElementsAre("d/keep.txt", "d/sub/runs"));
}

// A run must not learn its own log, nor that of the run before it.
TEST_F(LoadText, PassesOverResultsOfTheRun) {
  for (const char* name :
       {"d/a.txt", "d/out/log.txt", "d/out.1/log.txt", "d/out.12/sub/x.txt", "d/out.txt", "d/out.1x/b"})
    write(name, name);
  const auto with_results = [&](const char* from, const char* results) {
    return names(load_text(std::vector{entry(from)}, "data.text", issues_, kMostNames, folder_ / results));
  };
  EXPECT_THAT(with_results("d", "d/out"), ElementsAre("d/a.txt", "d/out.1x/b", "d/out.txt"));
  EXPECT_THAT(with_results("d", "d/out/"), ElementsAre("d/a.txt", "d/out.1x/b", "d/out.txt"));
  EXPECT_THAT(with_results("d/**", "d/out"), ElementsAre("d/a.txt", "d/out.1x/b", "d/out.txt"));
  EXPECT_THAT(with_results("d/*.txt", "d"), ElementsAre("d/a.txt", "d/out.txt"));     // spelled out
  EXPECT_THAT(with_results("d/out/log.txt", "d/out"), ElementsAre("d/out/log.txt"));  // named
  EXPECT_THAT(with_results("d/out.1", "d/out"), ElementsAre("d/out.1/log.txt"));
  EXPECT_THAT(issues_, IsEmpty());
  EXPECT_TRUE(takes_file(std::vector{entry("d")}, folder_ / "d/out/log.txt"));
  EXPECT_FALSE(takes_file(std::vector{entry("d")}, folder_ / "d/out/log.txt", folder_ / "d/out"));
  EXPECT_FALSE(takes_file(std::vector{entry("d")}, folder_ / "d/new.json"));
}

TEST_F(LoadText, FolderNamedOutrightIsSearchedWhateverItsName) {
  write("build/a.txt", "a");
  EXPECT_THAT(names(load({entry("build")})), ElementsAre("build/a.txt"));
}

TEST_F(LoadText, FileNamedOutrightIsTakenWhateverItHolds) {
  write(".raw", std::string_view("a\0b", 3));
  EXPECT_EQ(load({entry(".raw")}).bytes, std::string("a\0b", 3));
  EXPECT_THAT(issues_, IsEmpty());
}

TEST_F(LoadText, LooksAtNoMoreNamesThanItMay) {
  for (const char* name : {"d/a.txt", "d/e/b.txt"}) write(name, name);
  for (const char* name : {"d", "d/**", "d/**/*.txt"}) {
    issues_.clear();
    EXPECT_THAT(load_text(std::vector{entry(name)}, "data.text", issues_, 6).parts, SizeIs(2)) << name;
    EXPECT_THAT(issues_, IsEmpty()) << name;
    EXPECT_THAT(load_text(std::vector{entry(name)}, "data.text", issues_, 2).parts, IsEmpty()) << name;
    ASSERT_THAT(issues_, SizeIs(1)) << name;
    EXPECT_THAT(issues_.front().message, HasSubstr("more than 2 names to look through")) << name;
  }
}

TEST_F(LoadText, RefusesTheWholeFileSystem) {
  for (const char* name : {"/", "/tmp/.."}) {
    issues_.clear();
    EXPECT_THAT(load({entry(name)}).parts, IsEmpty()) << name;
    ASSERT_THAT(issues_, SizeIs(1)) << name;
    EXPECT_THAT(issues_.front().message, HasSubstr("the whole file system")) << name;
  }
}

TEST_F(LoadText, FollowsNoLinksToFolders) {
  write("d/a.txt", "a");
  fs::create_directory_symlink("..", folder_ / "d/loop");
  EXPECT_THAT(names(load({entry("d")})), ElementsAre("d/a.txt"));
  EXPECT_THAT(names(load({entry("d/**/*.txt")})), ElementsAre("d/a.txt"));
}

TEST_F(LoadText, Globs) {
  for (const char* name : {"src/a.cpp", "src/b.hpp", "src/x/c.cpp", "src/x/y/d.cpp", "src/build/e.cpp", "src/.f.cpp"}) {
    write(name, name);
  }
  EXPECT_THAT(names(load({entry("src/*.cpp")})), ElementsAre("src/a.cpp"));
  EXPECT_THAT(names(load({entry("src/?.?pp")})), ElementsAre("src/a.cpp", "src/b.hpp"));
  EXPECT_THAT(names(load({entry("src/**/*.cpp")})), ElementsAre("src/a.cpp", "src/x/c.cpp", "src/x/y/d.cpp"));
  EXPECT_THAT(names(load({entry("**/y/*")})), ElementsAre("src/x/y/d.cpp"));
  EXPECT_THAT(names(load({entry("src/**")})), ElementsAre("src/a.cpp", "src/b.hpp", "src/x/c.cpp", "src/x/y/d.cpp"));
  EXPECT_THAT(names(load({entry("**/**/c.cpp")})), ElementsAre("src/x/c.cpp"));
  EXPECT_THAT(names(load({entry("src/*/*.cpp")})), ElementsAre("src/x/c.cpp"));
  EXPECT_THAT(names(load({entry("src/build/*")})), ElementsAre("src/build/e.cpp"));
  EXPECT_THAT(names(load({entry("src/.*")})), ElementsAre("src/.f.cpp"));
  EXPECT_THAT(issues_, IsEmpty());
}

TEST_F(LoadText, StarsInManyPlacesMatchInLittleTime) {
  write(std::string(120, 'a') + "b", "found");
  EXPECT_EQ(load({entry("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b")}).bytes, "found");
  EXPECT_EQ(load({entry("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*c")}).bytes, "");
}

TEST_F(LoadText, NameWithAStarIsAFileFirst) {
  write("what*", "literal");
  write("whatever", "other");
  EXPECT_EQ(load({entry("what*")}).bytes, "literal");
}

TEST_F(LoadText, FileNamedTwiceIsTakenOnce) {
  write("d/a.txt", "a");
  write("d/b.txt", "b");
  EXPECT_EQ(load({entry("d/b.txt"), entry("d"), entry("d/../d/*.txt")}).bytes, "ba");
  EXPECT_THAT(issues_, IsEmpty());
}

TEST_F(LoadText, ReportsEveryFaultAtOnce) {
  write("good.txt", "good");
  write("binary/x", std::string_view("\0", 1));
  fs::create_directories(folder_ / "empty");
  const Text text = load({entry("missing.txt", 3), entry("good.txt", 4), entry("*.none", 5), entry("empty", 6),
                          entry("binary/*", 8), entry("good.txt/below", 9)});
  EXPECT_EQ(text.bytes, "good");
  ASSERT_THAT(issues_, SizeIs(5));
  EXPECT_EQ(issues_[0].file, "input.yaml");
  EXPECT_EQ(issues_[0].line, 3);
  EXPECT_EQ(issues_[0].key, "data.text");
  EXPECT_THAT(issues_[0].message, HasSubstr("missing.txt: no such file or folder"));
  EXPECT_THAT(issues_[0].hint, HasSubstr((folder_ / "missing.txt").string()));
  EXPECT_EQ(issues_[1].line, 5);
  EXPECT_THAT(issues_[1].message, HasSubstr("*.none: the pattern matches no text file"));
  EXPECT_THAT(issues_[2].message, HasSubstr("empty: the folder holds no text file"));
  EXPECT_THAT(issues_[3].message, HasSubstr("binary/*: the pattern matches no text file"));
  EXPECT_EQ(issues_[4].line, 9);
}

TEST_F(LoadText, UnreadableFileAndFolder) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  fs::permissions(write("d/secret.txt", "x"), fs::perms::none);
  write("e/f/x.txt", "x");
  fs::permissions(folder_ / "e/f", fs::perms::none);
  (void)load({entry("d"), entry("d/secret.txt"), entry("e")});
  fs::permissions(folder_ / "e/f", fs::perms::owner_all);
  ASSERT_THAT(issues_, SizeIs(3));
  for (const Issue& issue : issues_) EXPECT_THAT(issue.message, HasSubstr("ermission denied"));
}

// A pipe without a writer would be waited for for ever, /dev/zero read until memory ends.
TEST_F(LoadText, OnlyRegularFilesAreRead) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  SourceEntry endless = entry("zero");
  endless.resolved = "/dev/zero";
  fs::create_symlink("/dev/zero", folder_ / "link");
  (void)load({entry("pipe"), endless, entry("link")});
  ASSERT_THAT(issues_, SizeIs(3));
  for (const Issue& issue : issues_) EXPECT_THAT(issue.message, HasSubstr("not a regular file"));
}

TEST_F(LoadText, NothingButEmptyFilesIsAFault) {
  write("a.txt", "");
  (void)load({entry("a.txt", 2)});
  ASSERT_THAT(issues_, SizeIs(1));
  EXPECT_THAT(issues_[0].message, HasSubstr("no text"));
  EXPECT_EQ(issues_[0].line, 2);
}

}  // namespace
}  // namespace cleave::data
