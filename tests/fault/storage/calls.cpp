// The functions themselves, on system calls, so that none of them needs another before it works.
//
// Of recorded files only those opened below the root are followed, by inode. The log of a run is written with fwrite;
// its lines are recorded as they are, the file is not.
#include "calls.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace cleave::faults {

namespace {

constexpr std::size_t kRoom = 256 << 20;
constexpr std::int64_t kMostPlaces = 1 << 20;

struct Shared {
  std::atomic<std::int64_t> calls[kCalls];
  std::atomic<std::int64_t> file_calls;
  std::atomic<bool> injected;
  std::atomic<bool> lock;
  std::size_t used;
  char bytes[kRoom];
  std::uint64_t places[kMostPlaces];  // of the n-th allocation
};

struct Head {
  Step::Kind kind;
  std::uint64_t file;
  std::int64_t offset;
  std::uint32_t path, other;
};

Shared* shared = nullptr;
std::atomic<bool> armed{false};
const char* note_file = nullptr;
Plan* plan = nullptr;  // leaked: calls come until the very end

bool changes_files(Call call) { return call <= Call::truncate; }

// The functions that called each other down to here, as one number. Asks nobody for memory.
std::uint64_t place_of_call() {
  struct Walk {
    std::uint64_t hash = 1469598103934665603ULL;  // FNV-1a
    int left = plan->place_depth;
  } walk;
  const auto step = [](_Unwind_Context* context, void* argument) {
    auto& at = *static_cast<Walk*>(argument);
    at.hash = (at.hash ^ _Unwind_GetIP(context)) * 1099511628211ULL;
    return --at.left > 0 ? _URC_NO_REASON : _URC_END_OF_STACK;
  };
  _Unwind_Backtrace(step, &walk);
  return walk.hash;
}

// For who cannot look at the ledger: the file that CLEAVE_FAULT_NOTE names is there.
void note_injection() {
  if (note_file == nullptr) return;
  const long file = syscall(SYS_openat, AT_FDCWD, note_file, O_WRONLY | O_CREAT, 0600);
  if (file >= 0) syscall(SYS_close, file);
}

// Counts a call; true: it is to fail, and errno is set.
bool fails(Call call) {
  if (!armed.load(std::memory_order_relaxed) || shared == nullptr) return false;
  const std::int64_t n = ++shared->calls[static_cast<int>(call)];
  if (plan->place_depth > 0 && call == Call::allocate && n <= kMostPlaces) shared->places[n - 1] = place_of_call();
  const std::int64_t of_files = changes_files(call) ? ++shared->file_calls : 0;
  if (plan->nth == 0) return false;
  if (plan->die) {
    if (of_files != plan->nth) return false;
    shared->injected = true;
    _exit(137);
  }
  if (call != plan->call || n < plan->nth || n >= plan->nth + plan->repeat) return false;
  if (!shared->injected.exchange(true)) note_injection();
  errno = plan->error;
  return true;
}

bool recording() { return armed.load(std::memory_order_relaxed) && shared != nullptr && !plan->root.empty(); }

// The path below the root, or null. Paths are used as they are given: the runs give absolute ones without dots.
const char* below_root(const char* path) {
  const std::size_t length = plan->root.size();
  if (strncmp(path, plan->root.c_str(), length) != 0) return nullptr;
  if (path[length] == '\0') return path + length;
  return path[length] == '/' ? path + length + 1 : nullptr;
}

void note(Step::Kind kind, std::uint64_t file, std::int64_t offset, const char* path, const void* other,
          std::size_t size) {
  const Head head{kind, file, offset, static_cast<std::uint32_t>(strlen(path)), static_cast<std::uint32_t>(size)};
  while (shared->lock.exchange(true)) {}
  const std::size_t all = sizeof head + head.path + size;
  if (shared->used + all <= kRoom) {
    char* at = shared->bytes + shared->used;
    memcpy(at, &head, sizeof head);
    memcpy(at + sizeof head, path, head.path);
    if (size > 0) memcpy(at + sizeof head + head.path, other, size);
    shared->used += all;
  }
  shared->lock = false;
}

// What a descriptor stands for, where it is a file or folder below the root.
struct Known {
  bool known = false, folder = false;
  std::uint64_t file = 0;
  char path[4096];
};

void identify(int descriptor, Known& known) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  char whole[4096];
  const long length = syscall(SYS_readlinkat, AT_FDCWD, link, whole, sizeof whole - 1);
  if (length <= 0) return;
  whole[length] = '\0';
  const char* path = below_root(whole);
  if (path == nullptr) return;
  struct stat status {};
  if (fstat(descriptor, &status) != 0) return;
  known.known = S_ISREG(status.st_mode) || S_ISDIR(status.st_mode);
  known.folder = S_ISDIR(status.st_mode);
  known.file = status.st_ino;
  snprintf(known.path, sizeof known.path, "%s", path);
}

void note_written(int descriptor, std::int64_t offset, const void* bytes, std::size_t size) {
  const int error = errno;
  Known known;
  identify(descriptor, known);
  if (known.known) note(Step::Kind::write, known.file, offset, known.path, bytes, size);
  errno = error;
}

std::int64_t end_of_last_write(int descriptor, std::int64_t size) {
  return syscall(SYS_lseek, descriptor, 0, SEEK_CUR) - size;
}

int do_open(int folder, const char* path, int flags, unsigned mode) {
  if (fails(Call::open)) return -1;
  const bool record = recording() && (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0 && below_root(path) != nullptr;
  const bool new_name = record && (flags & O_CREAT) != 0 && syscall(SYS_faccessat, AT_FDCWD, path, F_OK) != 0;
  const int descriptor = static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
  if (descriptor < 0 || !record) return descriptor;
  Known known;
  identify(descriptor, known);
  if (new_name) note(Step::Kind::create, known.file, 0, known.path, nullptr, 0);
  if (!new_name && (flags & O_TRUNC) != 0) note(Step::Kind::truncate, known.file, 0, known.path, nullptr, 0);
  return descriptor;
}

void note_names(Step::Kind kind, std::uint64_t file, const char* path, const char* other) {
  if (!recording()) return;
  const char* first = below_root(path);
  const char* second = other != nullptr ? below_root(other) : "";
  if (second == nullptr || (first == nullptr && kind != Step::Kind::link)) return;
  // A link from without is a file that was there before.
  note(kind, file, 0, first == nullptr ? path : first, second, strlen(second));
}

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

void hear(const void* bytes, std::size_t size) {
  const auto has = [&](const char* level) { return memmem(bytes, size, level, strlen(level)) != nullptr; };
  if (recording() && (has(" info: ") || has(" warning: "))) note(Step::Kind::said, 0, 0, "", bytes, size);
}

}  // namespace

Ledger::Ledger() {
  if (shared == nullptr) {
    void* const room = reinterpret_cast<void*>(syscall(SYS_mmap, nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                                                       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (room == MAP_FAILED) abort();
    shared = static_cast<Shared*>(room);
  }
  clear();
}
Ledger::~Ledger() = default;

void Ledger::clear() {
  for (auto& calls : shared->calls) calls = 0;
  shared->file_calls = 0;
  shared->injected = false;
  shared->lock = false;
  shared->used = 0;
}

std::int64_t Ledger::calls(Call call) const { return shared->calls[static_cast<int>(call)]; }
std::int64_t Ledger::file_calls() const { return shared->file_calls; }
bool Ledger::injected() const { return shared->injected; }

std::vector<std::uint64_t> Ledger::places() const {
  return {shared->places, shared->places + std::min(kMostPlaces, calls(Call::allocate))};
}

std::vector<Step> Ledger::steps() const {
  std::vector<Step> steps;
  for (std::size_t at = 0; at < shared->used;) {
    Head head{};
    memcpy(&head, shared->bytes + at, sizeof head);
    const char* path = shared->bytes + at + sizeof head;
    steps.push_back({.kind = head.kind,
                     .file = head.file,
                     .offset = head.offset,
                     .path = std::string(path, head.path),
                     .other = std::string(path + head.path, head.other)});
    at += sizeof head + head.path + head.other;
  }
  return steps;
}

void arm(const Plan& wanted) {
  plan = new Plan(wanted);
  armed = true;
}

namespace {

// Loaded before another program: CLEAVE_FAULT=KIND:N:ERRNO in its environment, in the rank that CLEAVE_FAULT_RANK
// names. That it happened shows in the file CLEAVE_FAULT_NOTE. Without CLEAVE_FAULT the file gets a line when the
// program ends: how many calls there were of each kind.
[[gnu::constructor]] void arm_from_environment() {
  const char* text = getenv("CLEAVE_FAULT");
  const char* wanted = getenv("CLEAVE_FAULT_RANK");
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  note_file = getenv("CLEAVE_FAULT_NOTE");
  if ((text == nullptr && note_file == nullptr) ||
      (wanted != nullptr && (rank == nullptr || strcmp(wanted, rank) != 0))) {
    note_file = nullptr;
    return;
  }
  static const Ledger ledger;
  Plan from;
  if (text == nullptr) return arm(from);
  for (int i = 0; i < kCalls; ++i) {
    const std::size_t length = strlen(kCallNames[i]);
    if (strncmp(text, kCallNames[i], length) != 0 || text[length] != ':') continue;
    from.call = static_cast<Call>(i);
    char* end = nullptr;
    from.nth = strtol(text + length + 1, &end, 10);
    from.error = *end == ':' ? atoi(end + 1) : EIO;
  }
  if (from.nth != 0) arm(from);
}

[[gnu::destructor]] void write_counts() {
  if (note_file == nullptr || plan == nullptr || plan->nth != 0) return;
  armed = false;
  std::FILE* const note = std::fopen(note_file, "w");
  if (note == nullptr) return;
  for (int i = 0; i < kCalls; ++i)
    std::fprintf(note, "%s:%lld ", kCallNames[i], static_cast<long long>(shared->calls[i]));
  std::fclose(note);
}

}  // namespace

}  // namespace cleave::faults

using cleave::faults::Call;
using cleave::faults::Known;
using cleave::faults::Step;
using namespace cleave::faults;  // NOLINT(google-build-using-namespace): what follows has C names

extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, unsigned) : 0;
  va_end(list);
  return do_open(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, unsigned) : 0;
  va_end(list);
  return do_open(AT_FDCWD, path, flags, mode);
}

ssize_t write(int descriptor, const void* bytes, size_t size) {
  if (fails(Call::write)) return -1;
  const ssize_t put = syscall(SYS_write, descriptor, bytes, size);
  if (put > 0 && recording())
    note_written(descriptor, end_of_last_write(descriptor, put), bytes, static_cast<size_t>(put));
  return put;
}
ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t offset) {
  if (fails(Call::write)) return -1;
  const ssize_t put = syscall(SYS_pwrite64, descriptor, bytes, size, offset);
  if (put > 0 && recording()) note_written(descriptor, offset, bytes, static_cast<size_t>(put));
  return put;
}
ssize_t pwrite64(int descriptor, const void* bytes, size_t size, off64_t offset) {
  return pwrite(descriptor, bytes, size, offset);
}
ssize_t writev(int descriptor, const iovec* parts, int count) {
  ssize_t all = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t put = write(descriptor, parts[i].iov_base, parts[i].iov_len);
    if (put < 0) return all > 0 ? all : -1;
    all += put;
    if (put < static_cast<ssize_t>(parts[i].iov_len)) break;
  }
  return all;
}
// Whoever copies files falls back to read and write.
ssize_t sendfile(int, int, off_t*, size_t) {
  errno = EINVAL;
  return -1;
}
ssize_t sendfile64(int, int, off64_t*, size_t) {
  errno = EINVAL;
  return -1;
}
ssize_t copy_file_range(int, off64_t*, int, off64_t*, size_t, unsigned) {
  errno = ENOSYS;
  return -1;
}

int fsync(int descriptor) {
  if (fails(Call::sync)) return -1;
  const int result = static_cast<int>(syscall(SYS_fsync, descriptor));
  if (result == 0 && recording()) {
    Known known;
    identify(descriptor, known);
    if (known.known)
      note(known.folder ? Step::Kind::sync_folder : Step::Kind::sync_file, known.file, 0, known.path, nullptr, 0);
  }
  return result;
}
int fdatasync(int descriptor) { return fsync(descriptor); }

int ftruncate(int descriptor, off_t length) {
  if (fails(Call::truncate)) return -1;
  const int result = static_cast<int>(syscall(SYS_ftruncate, descriptor, length));
  if (result == 0 && recording()) {
    Known known;
    identify(descriptor, known);
    if (known.known) note(Step::Kind::truncate, known.file, length, known.path, nullptr, 0);
  }
  return result;
}
int ftruncate64(int descriptor, off64_t length) { return ftruncate(descriptor, length); }

int rename(const char* from, const char* to) {
  if (fails(Call::rename)) return -1;
  const int result = static_cast<int>(syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
  if (result == 0) note_names(Step::Kind::rename, 0, from, to);
  return result;
}
int unlink(const char* path) {
  if (fails(Call::remove)) return -1;
  const int result = static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
  if (result == 0) note_names(Step::Kind::remove, 0, path, nullptr);
  return result;
}
int remove(const char* path) {
  const int result = unlink(path);
  if (result == 0 || errno != EISDIR) return result;
  return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}
int link(const char* from, const char* to) {
  if (fails(Call::link)) return -1;
  const int result = static_cast<int>(syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
  if (result == 0 && recording()) {
    struct stat status {};
    if (stat(to, &status) == 0) note_names(Step::Kind::link, status.st_ino, from, to);
  }
  return result;
}
int mkdir(const char* path, mode_t mode) {
  if (fails(Call::mkdir)) return -1;
  const int result = static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  if (result == 0) note_names(Step::Kind::mkdir, 0, path, nullptr);
  return result;
}

void* mmap(void* address, size_t length, int protection, int flags, int descriptor, off_t offset) {
  if (fails(Call::map)) return MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, length, protection, flags, descriptor, offset));
}
void* mmap64(void* address, size_t length, int protection, int flags, int descriptor, off64_t offset) {
  return mmap(address, length, protection, flags, descriptor, offset);
}
int eventfd(unsigned start, int flags) {
  if (fails(Call::event)) return -1;
  return static_cast<int>(syscall(SYS_eventfd2, start, flags));
}

size_t fwrite(const void* bytes, size_t size, size_t count, FILE* to) {
  static const auto real = next<size_t (*)(const void*, size_t, size_t, FILE*)>("fwrite");
  if (to != stderr && to != stdout) hear(bytes, size * count);
  return real(bytes, size, count, to);
}
size_t fwrite_unlocked(const void* bytes, size_t size, size_t count, FILE* to) {
  static const auto real = next<size_t (*)(const void*, size_t, size_t, FILE*)>("fwrite_unlocked");
  if (to != stderr && to != stdout) hear(bytes, size * count);
  return real(bytes, size, count, to);
}

// What the program's own malloc (src/app/main_memory.cpp) takes for the system's.
void* cleave_fault_malloc(size_t size) noexcept { return fails(Call::allocate) ? nullptr : __libc_malloc(size); }
void* cleave_fault_calloc(size_t count, size_t size) noexcept {
  return fails(Call::allocate) ? nullptr : __libc_calloc(count, size);
}
void* cleave_fault_realloc(void* old, size_t size) noexcept {
  return fails(Call::allocate) ? nullptr : __libc_realloc(old, size);
}
void* cleave_fault_memalign(size_t alignment, size_t size) noexcept {
  return fails(Call::allocate) ? nullptr : __libc_memalign(alignment, size);
}

}  // extern "C"
