// Checkpoints cut short, flipped, interrupted and written to full disks: refused or untouched, never believed.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "cleave/checkpoint/folder.hpp"
#include "cleave/checkpoint/snapshot.hpp"
#include "temp_folder.hpp"

namespace cleave::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr std::size_t kSealBytes = 24;

class Damage : public TempFolder {
 protected:
  void SetUp() override {
    TempFolder::SetUp();
    write_snapshot(path_, view_of(sample_snapshot()));
    whole_ = load(path_);
  }
  fs::path path_ = folder_ / "checkpoint-7.h5";
  std::string whole_;
};

TEST_F(Damage, CutShortAnywhereItIsRefused) {
  const std::size_t body = whole_.size() - kSealBytes;
  for (std::size_t length = 0; length < body; length += length < 64 || length + 64 > body ? 1 : 61) {
    store(path_, whole_.substr(0, length));
    EXPECT_THROW(verify_snapshot(path_), InputError) << length;
  }
  // Only the seal is cut: all is there, each part with its own checksum.
  for (std::size_t length = body; length < whole_.size(); ++length) {
    store(path_, whole_.substr(0, length));
    EXPECT_EQ(read_snapshot(path_), sample_snapshot()) << length;
  }
}

TEST_F(Damage, FlippedAnywhereItIsRefused) {
  const std::size_t body = whole_.size() - kSealBytes;
  for (std::size_t at = 0; at < whole_.size(); at += at < 64 || at + 64 > body ? 1 : 29) {
    std::string flipped = whole_;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    store(path_, flipped);
    if (at >= body && at < body + 8) {
      // A flip in the seal's own mark: the file counts as unsealed, and all in it is checked by itself.
      EXPECT_EQ(read_snapshot(path_), sample_snapshot());
    } else {
      EXPECT_THROW((void)read_header(path_), InputError) << at;
    }
  }
}

TEST_F(Damage, WithoutItsSealFlippedDataIsNoticedByItsOwnChecksum) {
  const std::string body = whole_.substr(0, whole_.size() - kSealBytes);
  store(path_, body);
  EXPECT_EQ(read_snapshot(path_), sample_snapshot());
  const Snapshot snapshot = sample_snapshot();
  for (const auto* tensors : {&snapshot.model, &snapshot.exp_avg, &snapshot.exp_avg_sq}) {
    for (const Tensor& tensor : *tensors) {
      const std::string data(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size() * sizeof(float));
      const std::size_t begin = body.find(data);
      ASSERT_NE(begin, std::string::npos) << tensor.name;
      for (const std::size_t at : {std::size_t{0}, data.size() / 2, data.size() - 1}) {
        std::string flipped = body;
        flipped[begin + at] = static_cast<char>(flipped[begin + at] ^ 1);
        store(path_, flipped);
        EXPECT_THAT(input_error([&] { verify_snapshot(path_); }), HasSubstr(tensor.name + ": its checksum differs"));
      }
    }
  }
}

TEST_F(Damage, WithoutItsSealAFlippedStateIsNoticedByItsOwnChecksum) {
  const std::string body = whole_.substr(0, whole_.size() - kSealBytes);
  for (const auto& [name, value] : sample_snapshot().state) {
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr || text->empty()) continue;  // numbers may lie elsewhere, too
    std::string flipped = body;
    const std::size_t begin = body.find(*text);
    ASSERT_NE(begin, std::string::npos) << name;
    flipped[begin] = static_cast<char>(flipped[begin] ^ 1);
    store(path_, flipped);
    EXPECT_THAT(input_error([&] { (void)read_header(path_); }), HasSubstr("/state/" + name + ": its checksum differs"));
  }
}

TEST_F(Damage, MessageSaysWhatToDo) {
  whole_[whole_.size() / 2] ^= 1;
  store(path_, whole_);
  EXPECT_THAT(input_error([&] { (void)read_header(path_); }),
              HasSubstr("checkpoint-7.h5: damaged: its bytes do not add up to the checksum at its end"));
}

/// Runs `child` in a process of its own and returns its wait status.
int in_child(const std::function<void()>& child) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    child();
    std::fflush(stderr);
    std::exit(0);  // with the handlers of exit(): the HDF5 library must not get stuck in its own
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

TEST_F(Damage, DiskFullAtAnyMomentKeepsTheOldFileAndTheProgram) {
  // A limit on the size of files stands for a full disk: write() fails at that byte.
  Snapshot next = sample_snapshot(8);
  next.model.push_back(random_tensor("zzz", {300, 100}, 9));
  write_snapshot(folder_ / "size.h5", view_of(next));
  const auto size = static_cast<rlim_t>(fs::file_size(folder_ / "size.h5"));
  for (rlim_t limit = 0; limit < size; limit += limit < 4000 ? 500 : 9001) {
    const int status = in_child([&] {
      ::signal(SIGXFSZ, SIG_IGN);
      rlimit file_size{};
      ::getrlimit(RLIMIT_FSIZE, &file_size);
      const rlimit before = file_size;
      file_size.rlim_cur = limit;
      ::setrlimit(RLIMIT_FSIZE, &file_size);
      try {
        write_snapshot(path_, view_of(next));
        std::_Exit(3);
      } catch (const EnvironmentError&) {}
      // The disk has room again: the next checkpoint works.
      ::setrlimit(RLIMIT_FSIZE, &before);
      write_snapshot(folder_ / "checkpoint-9.h5", view_of(next));
    });
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << limit << ": " << status;
    EXPECT_EQ(load(path_), whole_) << limit;
    EXPECT_FALSE(fs::exists(path_.string() + ".tmp")) << limit;
    EXPECT_EQ(read_snapshot(folder_ / "checkpoint-9.h5").model, next.model);
    fs::remove(folder_ / "checkpoint-9.h5");
  }
}

TEST_F(Damage, KilledAtAnyMomentTheOldOrTheNewOneIsThere) {
  Snapshot next = sample_snapshot(8);
  next.model.push_back(random_tensor("zzz", {1000, 400}, 9));
  const Random random(2, Purpose::test);
  for (std::uint64_t i = 0; i < 25; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (;;) write_snapshot(path_, view_of(next));
    }
    ::usleep(static_cast<useconds_t>(random.below(i, 30000)));
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    const std::string now = load(path_);
    if (now != whole_) { EXPECT_EQ(read_snapshot(path_).state, next.state); }
    const auto newest = newest_whole_checkpoint(folder_);
    ASSERT_TRUE(newest.found.has_value());
    EXPECT_TRUE(newest.skipped.empty());
    (void)Pruner(folder_).prune(1);
    EXPECT_FALSE(fs::exists(path_.string() + ".tmp"));
  }
}

}  // namespace
}  // namespace cleave::checkpoint
