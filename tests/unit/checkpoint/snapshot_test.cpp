// Checkpoints: what is written comes back, what does not fit is refused, and other programs can read the file.
#include "cleave/checkpoint/snapshot.hpp"

#include <gmock/gmock.h>

#include <bit>
#include <chrono>
#include <ctime>
#include <limits>
#include <thread>

#include "cleave/base/version.hpp"
#include "temp_folder.hpp"

namespace cleave::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class SnapshotFile : public TempFolder {
 protected:
  fs::path path_ = folder_ / "checkpoint-7.h5";
};

TEST_F(SnapshotFile, RoundTrip) {
  const Snapshot snapshot = sample_snapshot();
  write_snapshot(path_, view_of(snapshot));
  EXPECT_EQ(read_snapshot(path_), snapshot);
  verify_snapshot(path_);
}

TEST_F(SnapshotFile, RoundTripKeepsEveryBit) {
  Snapshot snapshot;
  snapshot.model = {{"w",
                     {5},
                     {std::bit_cast<float>(0x7FC12345u), -0.0f, std::numeric_limits<float>::infinity(),
                      std::numeric_limits<float>::denorm_min(), 0.1f}}};
  snapshot.attributes = {{"x", 0.1 + 0.2}};
  write_snapshot(path_, view_of(snapshot));
  const Snapshot again = read_snapshot(path_);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(again.model[0].data[i]),
              std::bit_cast<std::uint32_t>(snapshot.model[0].data[i]));
  }
  EXPECT_EQ(again.attributes, snapshot.attributes);
}

TEST_F(SnapshotFile, OddShapes) {
  Snapshot snapshot;
  snapshot.model = {random_tensor("empty", {0, 3}, 1), random_tensor("rank4", {2, 1, 3, 2}, 2),
                    random_tensor("scalar", {}, 3)};
  write_snapshot(path_, view_of(snapshot));
  EXPECT_EQ(read_snapshot(path_), snapshot);
}

TEST_F(SnapshotFile, NoTensorsAtAll) {
  write_snapshot(path_, SnapshotView{});
  EXPECT_EQ(read_snapshot(path_), Snapshot{});
}

TEST_F(SnapshotFile, ManyTensorsAndLongTexts) {
  Snapshot snapshot;
  for (int i = 100; i < 900; ++i) {
    snapshot.model.push_back(
        random_tensor("layer." + std::to_string(i) + ".weight", {3}, static_cast<std::uint32_t>(i)));
    snapshot.attributes["attribute_" + std::to_string(i)] = std::int64_t{i};
  }
  snapshot.attributes["long"] = std::string(200'000, 'x');  // past what an old-style object header holds
  snapshot.state["vocabulary"] = std::string(300'000, 'y');
  write_snapshot(path_, view_of(snapshot));
  EXPECT_EQ(read_snapshot(path_), snapshot);
}

TEST_F(SnapshotFile, HeaderHasAllButTheData) {
  write_snapshot(path_, view_of(sample_snapshot()));
  const Header header = read_header(path_);
  EXPECT_EQ(header.kind, FileKind::checkpoint);
  EXPECT_EQ(header.format_version, kFormatVersion);
  EXPECT_EQ(header.cleave_version, kVersion);
  EXPECT_EQ(header.file_size.value(), static_cast<std::int64_t>(fs::file_size(path_)));
  EXPECT_EQ(header.attributes, sample_snapshot().attributes);
  EXPECT_EQ(header.state, sample_snapshot().state);
  ASSERT_EQ(header.model.size(), 3u);
  EXPECT_EQ(header.model[2], (TensorInfo{"transformer.wte.weight", {11, 5}}));
  EXPECT_EQ(header.exp_avg.size(), 2u);
}

TEST_F(SnapshotFile, SameSnapshotSameBytes) {
  write_snapshot(path_, view_of(sample_snapshot()));
  // The library knows time in seconds.
  for (const std::time_t begun = std::time(nullptr); std::time(nullptr) == begun;)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  write_snapshot(folder_ / "again.h5", view_of(sample_snapshot()));
  EXPECT_EQ(load(path_), load(folder_ / "again.h5"));
}

TEST_F(SnapshotFile, ReadsIntoGivenMemory) {
  const Snapshot snapshot = sample_snapshot();
  write_snapshot(path_, view_of(snapshot));
  Snapshot into = snapshot;
  SnapshotTarget target;
  for (Tensor& tensor : into.model) {
    std::ranges::fill(tensor.data, 0.0f);
    target.model.push_back({tensor.name, tensor.shape, tensor.data});
  }
  std::swap(target.model[0], target.model[2]);  // in whatever order
  for (Tensor* tensor : {&into.exp_avg[1], &into.exp_avg_sq[1]}) std::ranges::fill(tensor->data, 0.0f);
  target.exp_avg = {{into.exp_avg[1].name, into.exp_avg[1].shape, into.exp_avg[1].data}};
  target.exp_avg_sq = {{into.exp_avg_sq[1].name, into.exp_avg_sq[1].shape, into.exp_avg_sq[1].data}};
  EXPECT_EQ(read_snapshot_into(path_, target).state, snapshot.state);
  EXPECT_EQ(into, snapshot);
}

TEST_F(SnapshotFile, ListsEveryTensorOfAnotherModel) {
  write_snapshot(path_, view_of(sample_snapshot()));
  std::vector<float> memory(100);
  const SnapshotTarget target{.model = {{"transformer.wpe.weight", {5, 3}, std::span(memory).first(15)},
                                        {"transformer.wte.weight", {11, 5}, std::span(memory).first(55)},
                                        {"transformer.extra", {2}, std::span(memory).first(2)}},
                              .exp_avg = {{"transformer.h.0.ln_1.bias", {5}, std::span(memory).first(5)}},
                              .exp_avg_sq = {{"transformer.wte.weight", {5, 11}, std::span(memory).first(55)}}};
  const std::string text = input_error([&] { read_snapshot_into(path_, target); });
  EXPECT_THAT(text, AllOf(HasSubstr("checkpoint-7.h5: tensor transformer.wpe.weight is [3, 5], not [5, 3]"),
                          HasSubstr("tensor transformer.extra [2] is missing"),
                          HasSubstr("tensor transformer.h.0.ln_1.bias [5] is not part of the model"),
                          HasSubstr("first moment of transformer.h.0.ln_1.bias [5] is missing"),
                          HasSubstr("second moment of transformer.wte.weight is [11, 5], not [5, 11]"),
                          HasSubstr("another model")));
}

TEST_F(SnapshotFile, RefusesWhatCannotBeStored) {
  const std::vector<float> data(2);
  for (const std::string& name : {std::string(), std::string("a/b"), std::string("."), std::string("a\0b", 3)}) {
    EXPECT_THROW(
        write_snapshot(path_,
                       {.attributes = {}, .state = {}, .model = {{name, {2}, data}}, .exp_avg = {}, .exp_avg_sq = {}}),
        InputError);
  }
  SnapshotView twice{
      .attributes = {}, .state = {}, .model = {{"w", {2}, data}, {"w", {2}, data}}, .exp_avg = {}, .exp_avg_sq = {}};
  EXPECT_THROW(write_snapshot(path_, twice), Bug);
  SnapshotView wrong_size{.attributes = {}, .state = {}, .model = {{"w", {3}, data}}, .exp_avg = {}, .exp_avg_sq = {}};
  EXPECT_THROW(write_snapshot(path_, wrong_size), Bug);
  SnapshotView stray{.attributes = {},
                     .state = {},
                     .model = {{"w", {2}, data}},
                     .exp_avg = {{"v", {2}, data}},
                     .exp_avg_sq = {{"v", {2}, data}}};
  EXPECT_THROW(write_snapshot(path_, stray), Bug);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(SnapshotFile, MissingFolderIsAnEnvironmentErrorWithTheLibrarysReason) {
  try {
    write_snapshot(folder_ / "none" / "c.h5", view_of(sample_snapshot()));
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("none/c.h5"), HasSubstr("No such file or directory")));
  }
}

TEST_F(SnapshotFile, RefusesWhatIsNoCheckpoint) {
  EXPECT_THAT(input_error([&] { (void)read_header(folder_ / "none.h5"); }), HasSubstr("none.h5: no such file"));
  EXPECT_THAT(input_error([&] { (void)read_header(folder_); }), HasSubstr("not a file"));
  store(path_, "");
  EXPECT_THAT(input_error([&] { (void)read_header(path_); }), HasSubstr("cannot be opened as an HDF5 file"));
  store(path_, std::string(5000, 'x'));
  EXPECT_THAT(input_error([&] { (void)read_header(path_); }), HasSubstr("file signature not found"));
}

TEST_F(SnapshotFile, H5pyReadsIt) {
  if (!python_has("h5py, numpy")) GTEST_SKIP() << "needs /usr/bin/python3 with h5py and numpy";
  Snapshot snapshot = sample_snapshot();
  snapshot.model[0].data = {1, 2, 3, 4, 0.5f};
  write_snapshot(path_, view_of(snapshot));
  EXPECT_TRUE(run_python(folder_, R"(
import h5py, numpy as np
f = h5py.File('checkpoint-7.h5', 'r')
assert f.attrs['format_version'] == 1 and f.attrs['family'] == b'gpt2' and f.attrs['norm_eps'] == 1e-5
assert isinstance(f.attrs['cleave_version'], bytes)
d = f['/model/transformer.h.0.ln_1.bias']
assert d.dtype == np.dtype('<f4') and d.shape == (5,) and list(d[...]) == [1, 2, 3, 4, 0.5]
assert d.chunks is None and d.id.get_offset() is not None   # contiguous
assert f['/model/transformer.wte.weight'].shape == (11, 5)
assert sorted(f['/optimizer/exp_avg']) == sorted(f['/optimizer/exp_avg_sq']) == ['transformer.wpe.weight', 'transformer.wte.weight']
assert f['/state/step'][()] == 7 and f['/state/seed'][()] == -1 and f['/state/tokenizer'][()] == b'char a 20-7e'
def has_sum(name, o):
    if isinstance(o, h5py.Dataset): assert o.attrs['xxh3'].dtype == np.uint64, name
f.visititems(has_sum)
)"));
}

TEST_F(SnapshotFile, NoticesAChangeThatAnotherProgramMade) {
  if (!python_has("h5py, numpy")) GTEST_SKIP() << "needs /usr/bin/python3 with h5py and numpy";
  struct Case {
    std::string edit, message;
  };
  const std::vector<Case> cases = {
      {"f['/model/transformer.wte.weight'][3, 2] += 1", "/model/transformer.wte.weight: its checksum differs"},
      {"f['/optimizer/exp_avg/transformer.wpe.weight'][0, 0] += 1",
       "/optimizer/exp_avg/transformer.wpe.weight: its checksum differs"},
      {"f['/state/step'][()] = 8", "/state/step: its checksum differs"},
      {"del f['/model/transformer.wte.weight']", "root's checksum differs"},
      {"f.move('/model/transformer.wte.weight', '/model/other')", "root's checksum differs"},
      {"f.attrs['n_layer'] = 3", "root's checksum differs"},
      {"del f.attrs['xxh3']", "no checksum"},
      {"del f['/model/transformer.wte.weight'].attrs['xxh3']", "has no checksum"},
      {"f.attrs['format_version'] = 2", "is of format 2; formats 1 to 1 are read"},
      {"del f['/model']", "neither a checkpoint nor a reference file"},
      {"f['/model/x'] = [1, 2]", "/model/x: is not of type f32"},
      {"f['/model/x'] = h5py.SoftLink('/state/step')", "/model/x: is neither"},
      {"f['/model/x'] = h5py.ExternalLink('/etc/passwd', '/')", "/model/x: is neither"},
      {"f.create_dataset('/model/x', (1<<40,), 'f4')", "/model/x: 1099511627776 elements"},
      {"f.create_dataset('/model/x', (1<<31,1<<31), 'f4', chunks=(64, 64))", "/model/x: its extents"},
      {"f.create_dataset('/model/x', (1<<25,1<<25), 'f4', chunks=(64, 64))", "do not lie in a file"},
      {"f.create_dataset('/model/x', (4,), 'f4', external=[('/etc/passwd', 0, 16)])",
       "/model/x: keeps its data in other files"},
  };
  write_snapshot(path_, view_of(sample_snapshot()));
  std::vector<std::string> edits;
  for (const Case& c : cases) edits.push_back(c.edit);
  ASSERT_TRUE(edit_copies(folder_, path_, edits));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_THAT(input_error([&] { (void)read_snapshot(folder_ / (std::to_string(i) + ".h5")); }),
                HasSubstr(cases[i].message))
        << cases[i].edit;
  }
}

}  // namespace
}  // namespace cleave::checkpoint
