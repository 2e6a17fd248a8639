// fork(): the program's start-up is not paid for again in each of thousands of runs.
#include "run.hpp"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cleave/base/error.hpp"

int cleave_main(int argc, char** argv);  // src/app/main.cpp

namespace cleave::faults {

namespace {

/// No run takes a second; one that takes this long hangs.
constexpr unsigned kLimitSeconds = 60;

constexpr const char* kInput = R"(model: {family: gpt2, n_layer: 1, n_head: 1, d_model: 8, seq_len: 8}
data: {text: text.txt, tokenizer: char, val_fraction: 0}
train: {steps: 6, batch: 2, lr: 1e-2, lr_decay_steps: 100}
fleet:
  patience: 2 s
  devices:
    - {name: a, count: 2, compute: 1 TFLOP/s, memory: 64 MiB, downlink: 100 MB/s, uplink: 50 MB/s}
server: {threads: 1}
verify: {mode: all}
checkpoint: {every: 2, keep: 2}
output: {dir: run}
)";

// What a run that ends badly was doing; then it ends as it would have.
void show_callers(int signal) {
  std::signal(signal, SIG_DFL);
  void* callers[64];
  ::backtrace_symbols_fd(callers, ::backtrace(callers, 64), STDERR_FILENO);
  ::raise(signal);
}

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

bool Ended::hung() const { return code == 128 + SIGALRM; }

Workshop::Workshop() {
  std::error_code error;
  const fs::path memory = "/dev/shm";
  std::string name =
      ((fs::is_directory(memory, error) ? memory : fs::temp_directory_path()) / "cleave-faults.XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw EnvironmentError("mkdtemp", name, std::strerror(errno));
  top_ = name;
  std::ofstream(top_ / "input.yaml") << kInput;
  std::ofstream text(top_ / "text.txt");
  for (int i = 0; i < 40; ++i) text << "the quick brown fox jumps over the lazy dog " << i * i << "\n";
}

Workshop::~Workshop() {
  std::error_code ignored;
  fs::remove_all(top_, ignored);
}

Ended Workshop::train(const std::vector<std::string>& arguments, const Plan& plan) {
  ledger_.clear();
  const fs::path said = top_ / "said";
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw EnvironmentError("fork", "a run", std::strerror(errno));
  if (child == 0) {
    ::alarm(kLimitSeconds);
    const int out = ::open(said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::close(out);
    for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGALRM}) std::signal(signal, show_callers);
    std::vector<std::string> words{"cleave", "train", input().string(), "--quiet"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    // As in a program of its own: an exception that main() lets through ends it.
    [&]() noexcept {
      arm(plan);
      const int code = cleave_main(static_cast<int>(words.size()), argv.data());
      std::fflush(nullptr);
      ::_exit(code);
    }();
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  return {.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), .said = contents(said)};
}

std::vector<Said> reports(const Step& step) {
  std::vector<Said> found;
  if (step.kind != Step::Kind::said) return found;
  std::istringstream lines(step.other);
  for (std::string line; std::getline(lines, line);) {
    const auto after = [&](const std::string& words) -> std::string {
      const std::size_t at = line.find(words);
      if (at == std::string::npos) return {};
      const std::size_t begin = at + words.size();
      return line.substr(begin, line.find(' ', begin) - begin);
    };
    if (const std::string file = after(" info: saved "); !file.empty()) found.push_back({Said::What::saved, file});
    if (const std::string file = after(" info: deleted "); !file.empty()) found.push_back({Said::What::deleted, file});
    if (const std::string step_text = after(" resuming after step "); !step_text.empty())
      found.push_back({Said::What::resumed, step_text});
  }
  return found;
}

std::uint64_t bits_of(const fs::path& checkpoint) {
  const checkpoint::Snapshot snapshot = checkpoint::read_snapshot(checkpoint);
  std::uint64_t bits = 1469598103934665603ULL;  // FNV-1a
  for (const auto* tensors : {&snapshot.model, &snapshot.exp_avg, &snapshot.exp_avg_sq}) {
    for (const checkpoint::Tensor& tensor : *tensors) {
      for (const float value : tensor.data) {
        std::uint32_t word = 0;
        std::memcpy(&word, &value, sizeof word);
        bits = (bits ^ word) * 1099511628211ULL;
      }
    }
  }
  return bits;
}

std::vector<std::int64_t> metric_steps(const fs::path& run) {
  std::vector<std::int64_t> steps;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    if (object.is_object()) steps.push_back(object.value("step", std::int64_t{-1}));
  }
  return steps;
}

double emulated_time(const fs::path& run, int steps) {
  std::ifstream in(run / "metrics.jsonl");
  double seconds = 0;
  std::string line;
  for (int step = 0; step < steps && std::getline(in, line); ++step)
    seconds += nlohmann::json::parse(line).at("time_s").get<double>();
  return seconds;
}

bool thorough() { return std::getenv("CLEAVE_FAULT_FULL") != nullptr; }

}  // namespace cleave::faults
