// What the tests of files share: a folder that goes away, files as strings, a snapshot to write, the error's text.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/error.hpp"
#include "cleave/base/random.hpp"
#include "cleave/checkpoint/snapshot.hpp"

namespace cleave::checkpoint {

class TempFolder : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("cleave-checkpoint-" + std::to_string(::getpid()) + "-" +
                                                ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

inline std::string load(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void store(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline Tensor random_tensor(const std::string& name, Shape shape, std::uint32_t stream) {
  const Random random(1, Purpose::test, stream);
  Tensor tensor{name, std::move(shape), {}};
  for (std::int64_t i = 0; i < *element_count(tensor.shape); ++i) {
    tensor.data.push_back(static_cast<float>(random.normal(static_cast<std::uint64_t>(i))));
  }
  return tensor;
}

/// A small checkpoint with everything that one can hold, in order of name as reading gives it.
inline Snapshot sample_snapshot(std::int64_t step = 7) {
  Snapshot snapshot;
  snapshot.attributes = {{"family", std::string("gpt2")}, {"n_layer", std::int64_t{2}}, {"norm_eps", 1e-5}};
  snapshot.state = {{"step", step},
                    {"seed", std::int64_t{-1}},
                    {"best_loss", 0.1},
                    {"tokenizer", std::string("char a 20-7e")},
                    {"note", std::string("häßlich")},
                    {"empty", std::string()}};
  snapshot.model = {random_tensor("transformer.h.0.ln_1.bias", {5}, 1),
                    random_tensor("transformer.wpe.weight", {3, 5}, 2),
                    random_tensor("transformer.wte.weight", {11, 5}, 3)};
  snapshot.exp_avg = {random_tensor("transformer.wpe.weight", {3, 5}, 4),
                      random_tensor("transformer.wte.weight", {11, 5}, 5)};
  snapshot.exp_avg_sq = {random_tensor("transformer.wpe.weight", {3, 5}, 6),
                         random_tensor("transformer.wte.weight", {11, 5}, 7)};
  return snapshot;
}

/// The text of the InputError that `run` throws; empty, and a failure, where it throws none.
inline std::string input_error(const std::function<void()>& run) {
  try {
    run();
  } catch (const InputError& error) { return error.what(); }
  ADD_FAILURE() << "no InputError";
  return {};
}

/// Whether the system's Python has these modules.
inline bool python_has(const std::string& modules) {
  return std::system(("/usr/bin/python3 -c 'import " + modules + "' >/dev/null 2>&1").c_str()) == 0;
}

/// Runs a Python program; true where it ends well.
inline bool run_python(const std::filesystem::path& folder, std::string_view program) {
  store(folder / "program.py", program);
  return std::system(("cd '" + folder.string() + "' && /usr/bin/python3 program.py").c_str()) == 0;
}

/// Copies `original` to 0.h5, 1.h5, ... in `folder` and applies edits[i], Python on the open h5py file `f`, to i.h5.
inline bool edit_copies(const std::filesystem::path& folder, const std::filesystem::path& original,
                        const std::vector<std::string>& edits) {
  std::string program = "import h5py, numpy as np\n";
  for (std::size_t i = 0; i < edits.size(); ++i) {
    const std::string name = std::to_string(i) + ".h5";
    std::filesystem::copy_file(original, folder / name, std::filesystem::copy_options::overwrite_existing);
    program += "f = h5py.File('" + name + "', 'r+')\n" + edits[i] + "\nf.close()\n";
  }
  return run_python(folder, program);
}

}  // namespace cleave::checkpoint
