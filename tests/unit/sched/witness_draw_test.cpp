// Who is drawn to witness whom: the chances of docs/security.md, against the draws themselves.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cleave/plan/cost.hpp"
#include "cleave/sched/collusion.hpp"
#include "graphs.hpp"
#include "quorum/witness_draw.hpp"
#include "support/cases.hpp"

namespace cleave::sched {
namespace {

using testing_support::all_or_few;

struct Draws {
  model::StepGraph graph = graph_of({gemm(0, {64, 64, 64})});
  SimulatedFleet fleet;
  QuorumOptions options;
  WitnessDraw draw{fleet, options};

  Draws(std::vector<fleet::DeviceProfile> devices, double fraction)
      : fleet(std::move(devices), wide_server(), DType::f32),
        options{.fraction = fraction, .plan = {.server = wide_server()}} {
    options.secret[3] = std::byte{7};
    draw.begin_step(graph);
  }

  // Who witnesses tasklet `id` of device `first`; invalid: nobody.
  DeviceId witness_of(std::int64_t id, DeviceId first) {
    Tasklet tasklet;
    tasklet.id = TaskletId(id);
    tasklet.op = OpId(0);
    tasklet.piece.device = first;
    tasklet.piece.box = {0, 64, 0, 64, 0, 64};
    tasklet.piece.bytes_down = Bytes(32768);
    const auto witness = draw.draw(tasklet, 1);
    if (!witness) return {};
    draw.give_back(witness->piece.device, witness->takes);
    return witness->piece.device;
  }
};

std::vector<fleet::DeviceProfile> alike(std::int64_t count) {
  std::vector<fleet::DeviceProfile> devices;
  for (std::int64_t id = 0; id < count; ++id) devices.push_back(device(id, 1e9, 1e7, 5e6));
  return devices;
}

// The share of runs in which false blocks of a coalition stand: its devices return `blocks` of them, one after another,
// and a witness of the coalition confirms what it is asked.
double share_that_stands(const Collusion& c, std::int64_t runs) {
  Draws draws(alike(c.devices), c.fraction);
  const std::int64_t blocks = c.false_blocks * (c.rollback + 1);
  std::int64_t stood = 0, id = 0;
  for (std::int64_t run = 0; run < runs; ++run) {
    bool found_out = false;
    for (std::int64_t block = 0; block < blocks && !found_out; ++block, ++id) {
      if (!draws.draw.is_drawn(TaskletId(id))) continue;
      const DeviceId witness = draws.witness_of(id, DeviceId(id % c.coalition));
      EXPECT_TRUE(witness.valid());
      found_out = witness.value >= c.coalition;
    }
    stood += found_out ? 0 : 1;
  }
  return static_cast<double>(stood) / static_cast<double>(runs);
}

void expect_as_stated(const Collusion& c, std::int64_t runs) {
  const double stated = stand_chance(c);
  const double deviation = std::sqrt(stated * (1 - stated) / static_cast<double>(runs));
  EXPECT_NEAR(share_that_stands(c, runs), stated, 5 * deviation + 1e-12)
      << c.coalition << " of " << c.devices << ", fraction " << c.fraction << ", " << c.false_blocks
      << " false blocks in each of " << c.rollback + 1 << " steps";
}

TEST(WitnessDraw, FalseBlocksOfACoalitionStandAsOftenAsStated) {
  for (const double fraction : {0.1, 0.5, 1.0}) {
    for (const std::int64_t coalition : {1, 4, 10}) {
      for (const std::int64_t blocks : {1, 5}) {
        expect_as_stated(
            {.devices = 20, .coalition = coalition, .fraction = fraction, .false_blocks = blocks, .rollback = 0}, 4000);
      }
    }
  }
}

// The table of docs/security.md, as the page has it.
struct PageRow {
  std::string text;
  std::vector<std::string> cells;
  Collusion terms;
};
constexpr std::int64_t kPageDevices = 1000;
constexpr std::array<std::int64_t, 3> kPageRollbacks{0, 5, 20};

std::vector<PageRow> rows_of_the_page() {
  std::ifstream page(CLEAVE_SOURCE_DIR "/docs/security.md");
  std::vector<PageRow> rows;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line == "| share of colluders k/n | f | q | m | P, N = 0 | P, N = 5 | P, N = 20 |") {
      inside = true;
    } else if (!line.starts_with("| ")) {
      inside = inside && line.starts_with("|---");
    } else if (inside) {
      PageRow row{.text = line, .cells = {}, .terms = {}};
      std::istringstream cells(line.substr(2));
      for (std::string cell; std::getline(cells, cell, '|');) {
        cell.erase(0, cell.find_first_not_of(' '));
        cell.erase(cell.find_last_not_of(' ') + 1);
        row.cells.push_back(cell);
      }
      if (row.cells.size() == 4 + kPageRollbacks.size()) {
        row.terms = {.devices = kPageDevices,
                     .coalition = std::llround(std::stod(row.cells[0]) * kPageDevices),
                     .fraction = std::stod(row.cells[1]),
                     .false_blocks = std::stoll(row.cells[3]),
                     .rollback = 0};
      }
      rows.push_back(row);
    }
  }
  return rows;
}

TEST(WitnessDraw, ThePagesTableIsWhatTheFormulaGives) {
  const std::vector<PageRow> rows = rows_of_the_page();
  ASSERT_GE(rows.size(), 10U) << "the page has no such table";
  for (const PageRow& row : rows) {
    ASSERT_EQ(row.cells.size(), 4 + kPageRollbacks.size()) << row.text;
    EXPECT_EQ(row.cells[2], fmt::format("{:.3f}", detection_chance(row.terms))) << row.text;
    for (std::size_t i = 0; i < kPageRollbacks.size(); ++i) {
      Collusion terms = row.terms;
      terms.rollback = kPageRollbacks[i];
      EXPECT_EQ(row.cells[4 + i], fmt::format("{:.2g}", stand_chance(terms))) << row.text;
    }
  }
}

// Each row, with each rollback: up to 210 false blocks. Where hardly any stand the draws say that none does.
TEST(WitnessDraw, FalseBlocksStandAsOftenAsThePageSays) {
  const std::vector<PageRow> rows = rows_of_the_page();
  ASSERT_FALSE(rows.empty());
  for (const PageRow& row : rows) {
    for (const std::int64_t rollback : kPageRollbacks) {
      Collusion terms = row.terms;
      terms.rollback = rollback;
      expect_as_stated(terms, all_or_few(4000, 1000));
    }
  }
}

// Devices that are much quicker than others witness more, but no more than four times their share.
TEST(WitnessDraw, QuickDevicesDoNotWitnessEverything) {
  constexpr std::int64_t kDevices = 40, kQuickOnes = 4, kDraws = 4000;
  std::vector<fleet::DeviceProfile> devices = alike(kDevices);
  for (std::int64_t id = 0; id < kQuickOnes; ++id) devices[static_cast<std::size_t>(id)] = device(id, 1e11, 1e9, 5e6);
  Draws draws(std::move(devices), 1.0);
  std::int64_t quick = 0;
  for (std::int64_t id = 0; id < kDraws; ++id)
    quick += draws.witness_of(id, DeviceId(kDevices - 1)).value < kQuickOnes ? 1 : 0;
  EXPECT_LE(static_cast<double>(quick) / kDraws, 4.0 * kQuickOnes / kDevices);
}

TEST(WitnessDraw, NobodyWitnessesWhomHeBelongsTo) {
  std::vector<fleet::DeviceProfile> devices = alike(6);
  for (const std::size_t id : {0U, 1U}) devices[id].owner = "one";
  for (const std::size_t id : {0U, 2U}) devices[id].group = "two";
  Draws draws(std::move(devices), 1.0);
  draws.options.hosts = {"a", "b", "b", "a", "c", "c"};
  std::set<DeviceId> witnesses;
  for (std::int64_t id = 0; id < 200; ++id) witnesses.insert(draws.witness_of(id, DeviceId(0)));
  EXPECT_EQ(witnesses, (std::set<DeviceId>{DeviceId(4), DeviceId(5)}));
  draws.draw.distrust(DeviceId(4));
  for (std::int64_t id = 0; id < 200; ++id) EXPECT_EQ(draws.witness_of(id, DeviceId(0)), DeviceId(5));
  draws.draw.distrust(DeviceId(5));
  EXPECT_FALSE(draws.witness_of(0, DeviceId(0)).valid());
}

}  // namespace
}  // namespace cleave::sched
