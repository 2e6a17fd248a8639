// Memory that two ends share, without MPI: both ends are in this process and map each other through /proc, as two
// processes would.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "cleave/base/random.hpp"
#include "cleave/comm/message.hpp"
#include "frame_arena.hpp"
#include "shared_link.hpp"
#include "shared_mapping.hpp"

namespace cleave::comm {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

Frame filled(std::int64_t bytes, int value) {
  Frame frame(bytes);
  std::memset(frame.data(), value, static_cast<std::size_t>(bytes));
  return frame;
}

bool all_are(const Frame& frame, int value) {
  return std::all_of(frame.bytes().begin(), frame.bytes().end(),
                     [&](std::byte byte) { return byte == static_cast<std::byte>(value); });
}

TEST(SharedMapping, IsSeenByWhoeverHasItsAddress) {
  auto made = SharedMapping::make(3 * kMiB);
  ASSERT_TRUE(made);
  std::memset(made->data() + kMiB, 5, 10);
  const auto found = SharedMapping::open(made->address(), /*writable=*/false);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->bytes(), 3 * kMiB);
  EXPECT_EQ(found->data()[kMiB + 9], std::byte{5});
  EXPECT_NE(found->data(), made->data());
  // It outlives its maker.
  made.reset();
  EXPECT_EQ(found->data()[kMiB + 9], std::byte{5});
}

// Whoever finds memory that is its maker's alone can read it, and write neither through a mapping nor through the file.
TEST(SharedMapping, NobodyElseWritesToWhatIsItsMakersAlone) {
  const auto made = SharedMapping::make(kMiB, SharedMapping::Writers::maker);
  ASSERT_TRUE(made);
  const int seals = ::fcntl(made->descriptor(), F_GET_SEALS);
  if ((seals & 0x10) == 0) GTEST_SKIP() << "this kernel has no F_SEAL_FUTURE_WRITE";
  EXPECT_FALSE(SharedMapping::open(made->address(), /*writable=*/true));
  const std::byte byte{7};
  EXPECT_LT(::pwrite(made->descriptor(), &byte, 1, 5000), 0);
  made->data()[5000] = std::byte{9};
  const auto found = SharedMapping::open(made->address(), /*writable=*/false);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->data()[5000], std::byte{9});
  EXPECT_NE(::mprotect(found->data(), kMiB, PROT_READ | PROT_WRITE), 0);
  const auto arena = share_large_frames();
  ASSERT_TRUE(arena);
  EXPECT_FALSE(SharedMapping::open(arena->address(), /*writable=*/true));
}

TEST(SharedMapping, AWrongAddressFindsNothing) {
  const auto made = SharedMapping::make(SharedMapping::kFirst);
  ASSERT_TRUE(made);
  const auto with = [&](auto change) {
    SharedAddress address = made->address();
    change(address);
    return SharedMapping::open(address, false).has_value();
  };
  EXPECT_TRUE(with([](SharedAddress&) {}));
  EXPECT_FALSE(with([](SharedAddress& a) { a.token ^= 1; }));
  EXPECT_FALSE(with([](SharedAddress& a) { a.bytes += 4096; }));
  EXPECT_FALSE(with([](SharedAddress& a) { a.bytes = 0; }));
  EXPECT_FALSE(with([](SharedAddress& a) { a.descriptor = 1 << 20; }));
  EXPECT_FALSE(with([](SharedAddress& a) { a.pid = 0; }));
  EXPECT_FALSE(with([](SharedAddress& a) { a.pid = 1 << 30; }));
}

// Memory whose size can change would make its reader fault.
TEST(SharedMapping, MemoryThatCanShrinkIsNotOpened) {
  const int file = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, 8192), 0);
  EXPECT_FALSE(SharedMapping::open({getpid(), file, 8192, 0}, false));
  close(file);
}

TEST(SharedMapping, TheSizeIsFixedForEveryone) {
  const auto made = SharedMapping::make(kMiB);
  ASSERT_TRUE(made);
  EXPECT_NE(ftruncate(made->descriptor(), 4096), 0);
  EXPECT_NE(ftruncate(made->descriptor(), 2 * kMiB), 0);
}

TEST(FrameArena, MemoryIsUsedAgainAndNeighboursAreMerged) {
  const auto arena = FrameArena::make(64 * kMiB, 64 * kMiB);
  ASSERT_TRUE(arena);
  std::vector<std::byte*> parts;
  for (int i = 0; i < 10; ++i) parts.push_back(arena->take(kMiB));
  EXPECT_EQ(arena->in_use(), Bytes(10 * kMiB));
  for (const int i : {3, 5, 4}) arena->give_back(parts[static_cast<std::size_t>(i)], kMiB, 0);
  EXPECT_EQ(arena->take(3 * kMiB), parts[3]);
  const Bytes held = arena->held();
  arena->give_back(parts[3], 3 * kMiB, 0);
  for (int i = 0; i < 1000; ++i) arena->give_back(arena->take(3 * kMiB - i * 1000), 3 * kMiB - i * 1000, 0);
  EXPECT_EQ(arena->held(), held);
}

TEST(FrameArena, NothingWhenItIsFull) {
  const auto arena = FrameArena::make(8 * kMiB, kMiB);
  ASSERT_TRUE(arena);
  EXPECT_EQ(arena->take(8 * kMiB), nullptr);  // the first page is not for frames
  std::byte* const most = arena->take(8 * kMiB - 4096);
  EXPECT_NE(most, nullptr);
  EXPECT_EQ(arena->take(1), nullptr);
  arena->give_back(most, 8 * kMiB - 4096, 0);
  EXPECT_NE(arena->take(1), nullptr);
}

TEST(FrameArena, WhatIsSpareGoesBackToTheSystem) {
  const auto arena = FrameArena::make(256 * kMiB, 16 * kMiB);
  ASSERT_TRUE(arena);
  std::byte* const low = arena->take(kMiB);
  std::byte* const large = arena->take(200 * kMiB);
  std::memset(large, 1, 200 * kMiB);
  EXPECT_GE(arena->held(), Bytes(200 * kMiB));
  arena->give_back(large, 200 * kMiB, 0);
  EXPECT_LE(arena->held(), Bytes(20 * kMiB));
  arena->give_back(low, kMiB, 0);
  EXPECT_EQ(arena->in_use(), Bytes(0));
}

// Sizes and lives at random: ranges never overlap, all of them come back, and memory stays bounded.
TEST(FrameArena, RandomLives) {
  const auto arena = FrameArena::make(512 * kMiB, 8 * kMiB);
  ASSERT_TRUE(arena);
  const Random random(3, Purpose::test);
  std::uint64_t draw = 0;
  struct Part {
    std::byte* data;
    std::int64_t bytes;
    std::byte mark;
  };
  std::vector<Part> parts;
  for (int i = 0; i < 10000; ++i) {
    if (parts.size() < 12 && random.below(draw++, 2) == 0) {
      const auto bytes = static_cast<std::int64_t>(1 + random.below(draw++, 4 * kMiB));
      const auto mark = static_cast<std::byte>(i);
      std::byte* const data = arena->take(bytes);
      ASSERT_NE(data, nullptr);
      data[0] = data[bytes - 1] = mark;
      parts.push_back({data, bytes, mark});
    } else if (!parts.empty()) {
      const auto at = static_cast<std::ptrdiff_t>(random.below(draw++, parts.size()));
      const Part part = parts[static_cast<std::size_t>(at)];
      EXPECT_EQ(part.data[0], part.mark);
      EXPECT_EQ(part.data[part.bytes - 1], part.mark);
      arena->give_back(part.data, part.bytes, 0);
      parts.erase(parts.begin() + at);
    }
    ASSERT_LE(arena->held(), arena->in_use() + Bytes(8 * kMiB) + Bytes(12 * 4 * kMiB));
  }
  for (const Part& part : parts) arena->give_back(part.data, part.bytes, 0);
  EXPECT_EQ(arena->in_use(), Bytes(0));
  EXPECT_LE(arena->held(), Bytes(10 * kMiB));
}

// Two ends of a link in one process.
class Link : public testing::Test {
 protected:
  void SetUp() override {
    own_ = share_large_frames();
    ASSERT_TRUE(own_);
    auto ledger = SharedMapping::make(SharedLink::kLedgerBytes);
    ASSERT_TRUE(ledger);
    ledger_address_ = ledger->address();
    auto same_ledger = SharedMapping::open(ledger_address_, /*writable=*/true);
    raw_ledger_ = SharedMapping::open(ledger_address_, /*writable=*/true);
    auto one = SharedMapping::open(own_->address(), false), two = SharedMapping::open(own_->address(), false);
    ASSERT_TRUE(same_ledger && raw_ledger_ && one && two);
    a_ = std::make_unique<SharedLink>(own_, std::move(*one), std::move(*ledger), SharedSide::maker);
    b_ = std::make_unique<SharedLink>(own_, std::move(*two), std::move(*same_ledger), SharedSide::finder);
    before_ = own_->in_use();
  }
  static Frame deliver(const SharedNotice& notice, const SharedLink& to) {
    return to.borrow(std::as_bytes(std::span(&notice, 1)));
  }

  std::shared_ptr<FrameArena> own_;
  SharedAddress ledger_address_;
  std::optional<SharedMapping> raw_ledger_;
  std::unique_ptr<SharedLink> a_, b_;
  Bytes before_;
};

TEST_F(Link, AFrameIsReadWhereItWasWrittenAndComesBack) {
  Frame frame = filled(kMiB, 7);
  const std::byte* const where = frame.data();
  const auto notice = a_->lend(frame);
  ASSERT_TRUE(notice);
  EXPECT_TRUE(frame.empty());
  {
    const Frame view = deliver(*notice, *b_);
    EXPECT_TRUE(view.borrowed());
    EXPECT_EQ(view.size(), kMiB);
    EXPECT_NE(view.data(), where);
    EXPECT_TRUE(all_are(view, 7));
    EXPECT_FALSE(view.copy().borrowed());
    a_->collect();
    EXPECT_FALSE(a_->idle());
    EXPECT_EQ(a_->lent_bytes(), kMiB);
  }
  EXPECT_FALSE(a_->idle());
  a_->collect();
  EXPECT_TRUE(a_->idle());
  EXPECT_EQ(own_->in_use(), before_);
}

TEST_F(Link, BothWaysAndOutOfOrder) {
  std::vector<Frame> at_a, at_b;
  for (int i = 0; i < 100; ++i) {
    Frame out = filled(kMiB / 8, i), in = filled(kMiB / 8, i + 1);
    at_b.push_back(deliver(*a_->lend(out), *b_));
    at_a.push_back(deliver(*b_->lend(in), *a_));
  }
  for (const int i : {50, 3, 99, 0}) {
    at_b[static_cast<std::size_t>(i)] = Frame();
    a_->collect();
    b_->collect();
  }
  EXPECT_EQ(a_->lent_bytes(), 96 * kMiB / 8);
  EXPECT_EQ(b_->lent_bytes(), 100 * kMiB / 8);
  for (int i = 0; i < 100; ++i) {
    const auto index = static_cast<std::size_t>(i);
    EXPECT_TRUE(at_b[index].empty() || all_are(at_b[index], i)) << i;
    EXPECT_TRUE(all_are(at_a[index], i + 1)) << i;
  }
}

TEST_F(Link, MemoryStaysBoundedOverManyFrames) {
  std::vector<Frame> kept(7);
  Bytes most(0);
  for (std::size_t i = 0; i < 10000; ++i) {
    Frame frame(static_cast<std::int64_t>(64 * 1024 + i * 7919 % 200000));
    const auto notice = a_->lend(frame);
    ASSERT_TRUE(notice) << i;
    kept[i * 3 % kept.size()] = deliver(*notice, *b_);
    a_->collect();
    if (i == 100) most = own_->held();
  }
  EXPECT_LE(own_->held(), most + Bytes(4 * kMiB));
  kept.clear();
  a_->collect();
  EXPECT_EQ(own_->in_use(), before_);
}

TEST_F(Link, OnlyFramesOfTheArenaAreLentAndNotWithoutLimit) {
  Frame small = filled(1000, 1);
  EXPECT_FALSE(a_->lend(small));
  EXPECT_EQ(small.size(), 1000);
  std::vector<SharedNotice> notices;
  for (std::uint32_t i = 0; i < SharedLink::kWords; ++i) {
    Frame frame(64 * 1024);
    const auto notice = a_->lend(frame);
    ASSERT_TRUE(notice) << i;
    notices.push_back(*notice);
  }
  Frame one_more = filled(64 * 1024, 3);
  EXPECT_FALSE(a_->lend(one_more));
  EXPECT_TRUE(all_are(one_more, 3));
  (void)deliver(notices[17], *b_);
  a_->collect();
  EXPECT_TRUE(a_->lend(one_more));
}

TEST_F(Link, WrongNoticesAreEmptyFrames) {
  Frame frame = filled(kMiB, 7);
  const SharedNotice good = *a_->lend(frame);
  const auto size = static_cast<std::uint64_t>(own_->address().bytes);
  const std::uint64_t max = ~std::uint64_t{0}, limit = static_cast<std::uint64_t>(kMaxFrameBytes);
  for (const SharedNotice& wrong :
       {SharedNotice{good.offset + 1, good.bytes, good.word}, SharedNotice{size, 64, 0}, SharedNotice{size - 64, 65, 0},
        SharedNotice{max, 1, 0}, SharedNotice{max - 63, 64, 0}, SharedNotice{64, max, 0}, SharedNotice{64, max - 63, 0},
        SharedNotice{0, limit + 1, 0}, SharedNotice{good.offset, 0, good.word},
        SharedNotice{good.offset, good.bytes, SharedLink::kWords}, SharedNotice{good.offset, good.bytes, max}}) {
    EXPECT_TRUE(deliver(wrong, *b_).empty()) << wrong.offset << ' ' << wrong.bytes << ' ' << wrong.word;
  }
  const auto bytes = std::as_bytes(std::span(&good, 1));
  EXPECT_TRUE(b_->borrow(bytes.first(bytes.size() - 1)).empty());
  EXPECT_TRUE(b_->borrow({}).empty());
  a_->collect();
  EXPECT_FALSE(a_->idle());  // none of them released anything
  EXPECT_FALSE(deliver(good, *b_).empty());
}

// Whatever the other side writes into the ledger frees, at worst, what was lent to it.
TEST_F(Link, RubbishInTheLedgerIsHarmless) {
  Frame frame = filled(kMiB, 7);
  (void)a_->lend(frame);
  const auto words = static_cast<std::size_t>(SharedLink::kLedgerBytes - SharedMapping::kFirst);
  for (const int value : {0x55, 0xff, 0}) {
    std::memset(raw_ledger_->data() + SharedMapping::kFirst, value, words);
    a_->collect();
    b_->collect();
  }
  EXPECT_TRUE(a_->idle());
  EXPECT_EQ(own_->in_use(), before_);
  Frame next = filled(kMiB, 8);
  EXPECT_TRUE(all_are(deliver(*a_->lend(next), *b_), 8));
}

TEST_F(Link, ABorrowedFrameOutlivesTheLink) {
  Frame frame = filled(kMiB, 9);
  Frame view = deliver(*a_->lend(frame), *b_);
  b_.reset();
  EXPECT_TRUE(all_are(view, 9));
  view = Frame();
  a_->collect();
  EXPECT_TRUE(a_->idle());
}

TEST_F(Link, TheBorrowerCannotWrite) {
  Frame frame = filled(kMiB, 9);
  Frame view = deliver(*a_->lend(frame), *b_);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    view.data()[0] = std::byte{1};
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
  EXPECT_TRUE(all_are(view, 9));
}

// A checksum of the header alone is good where the sender wrote the frame and nowhere else.
TEST_F(Link, HeaderChecksumsAreForBorrowedFramesOnly) {
  Header header;
  header.kind = Kind::task;
  header.tasklet = TaskletId(1);
  header.device = DeviceId(2);
  header.op = OpId(3);
  header.work = Work::gemm;
  header.gemm = {.m = 128, .n = 128, .k = 128, .blocks = 1, .first_block = 0};
  header.panels = 1;
  TaskDraft draft = begin_task(header);
  std::memset(draft.frame.data() + kHeaderBytes, 1, static_cast<std::size_t>(draft.frame.size() - kHeaderBytes));
  Frame frame = seal_header(std::move(draft));
  EXPECT_FALSE(decode(frame));

  Frame complete = seal_payload(frame.copy());
  EXPECT_TRUE(decode(complete));
  complete.data()[complete.size() - 1] ^= std::byte{1};
  EXPECT_EQ(decode(complete).fault(), Fault::checksum);

  std::byte* const bytes = frame.data();
  const Frame view = deliver(*a_->lend(frame), *b_);
  ASSERT_TRUE(decode(view));
  EXPECT_TRUE(decode(view)->header_sum);
  EXPECT_TRUE(decode_task(view));
  EXPECT_FALSE(decode(view.copy()));
  EXPECT_TRUE(decode(seal_payload(view.copy())));
  EXPECT_TRUE(decode(view)) << "sealing a copy left the original alone";
  for (std::int64_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(decode(view)) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
  EXPECT_TRUE(decode(view));
}

}  // namespace
}  // namespace cleave::comm
