// What a checkpoint says of who delivered what, and what another fleet makes of it.
#include "part_record.hpp"
#include "support/cases.hpp"

#include <gtest/gtest.h>

namespace cleave::server {
namespace {

using testing_support::all_or_few;

std::vector<fleet::DeviceProfile> fleet_of(std::int64_t phones, std::int64_t laptops) {
  std::vector<fleet::DeviceProfile> fleet(static_cast<std::size_t>(phones + laptops));
  for (std::int64_t id = 0; id < phones + laptops; ++id) {
    fleet[static_cast<std::size_t>(id)].id = DeviceId(id);
    fleet[static_cast<std::size_t>(id)].name = id < phones ? "phone" : "laptop\xff\n";
  }
  return fleet;
}

std::set<DeviceId> ids(std::initializer_list<std::int64_t> values) {
  std::set<DeviceId> set;
  for (const std::int64_t value : values) set.insert(DeviceId(value));
  return set;
}

const PartRecord kRecord{.steps = {{12, ids({0, 1, 2, 4, 6})}, {13, ids({0, 1, 2, 4, 6})}, {14, {}}, {15, ids({5})}},
                         .earlier = ids({0, 6}),
                         .unknown_before = false};

TEST(PartRecord, IsReadAsItWasWritten) {
  const auto fleet = fleet_of(5, 2);
  const std::string text = to_text(kRecord, fleet);
  EXPECT_NE(text.find(R"([12,13,"0-2,4,6"])"), std::string::npos) << text;
  EXPECT_EQ(read_part_record(text, fleet, 0, 16), kRecord);
  EXPECT_EQ(read_part_record(text, fleet_of(5, 4), 0, 16), kRecord);  // new devices at the end had no part
  PartRecord unknown = kRecord;
  unknown.unknown_before = true;
  EXPECT_EQ(read_part_record(to_text(unknown, fleet), fleet, 12, 16), unknown);
}

TEST(PartRecord, WhatIsTooLongAgoIsKeptAsOneSet) {
  const auto record = read_part_record(to_text(kRecord, fleet_of(5, 2)), fleet_of(5, 2), 13, 16);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->steps.begin()->first, 13);
  EXPECT_EQ(record->steps.size(), 3U);
  EXPECT_EQ(record->earlier, ids({0, 1, 2, 4, 6}));
}

TEST(PartRecord, InAnotherFleetAnybodyMayHaveHadAPart) {
  for (const auto& fleet : {fleet_of(4, 3), fleet_of(5, 1)}) {
    const auto record = read_part_record(to_text(kRecord, fleet_of(5, 2)), fleet, 0, 16);
    ASSERT_TRUE(record);
    EXPECT_EQ(record->steps.at(15).size(), fleet.size());
    EXPECT_EQ(record->steps.at(14), ids({}));
    EXPECT_EQ(record->earlier.size(), fleet.size());
  }
}

TEST(PartRecord, ThousandsOfDevicesTakeFewBytesWhereAllHaveParts) {
  PartRecord record;
  const auto fleet = fleet_of(3000, 5000);
  for (std::int64_t step = 0; step < all_or_few(1000, 100); ++step) {
    for (const fleet::DeviceProfile& device : fleet) record.steps[step].insert(device.id);
  }
  EXPECT_LT(to_text(record, fleet).size(), 200U);
}

TEST(PartRecord, WhatIsNoneIsNotTakenForOne) {
  const auto fleet = fleet_of(5, 2);
  const std::string good = to_text(kRecord, fleet);
  const auto with = [&](std::string from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  EXPECT_FALSE(read_part_record("", fleet, 0, 16));
  EXPECT_FALSE(read_part_record("[]", fleet, 0, 16));
  EXPECT_FALSE(read_part_record(good, fleet, 0, 15));  // of another step
  EXPECT_FALSE(read_part_record(good, fleet, 0, 17));
  EXPECT_FALSE(read_part_record(good.substr(0, good.size() / 2), fleet, 0, 16));
  EXPECT_FALSE(read_part_record(with("[12,13", "[11,12"), fleet, 0, 16));  // a hole
  EXPECT_FALSE(read_part_record(with("[12,13", "[13,12"), fleet, 0, 16));
  EXPECT_FALSE(read_part_record(with("[12,13", "[12,9000000000000"), fleet, 0, 16));  // and takes no memory
  EXPECT_FALSE(read_part_record(with("0-2,4,6", "0-2,4,x"), fleet, 0, 16));
  EXPECT_FALSE(read_part_record(with("0-2,4,6", "2-0"), fleet, 0, 16));
  EXPECT_FALSE(read_part_record(with("0-2,4,6", "-1"), fleet, 0, 16));
  EXPECT_FALSE(read_part_record(with("\"unknown_before\":false", "\"unknown_before\":0"), fleet, 0, 16));
  // Numbers beyond the fleet name nobody and take no memory.
  const auto huge = read_part_record(with("0-2,4,6", "0-9000000000000"), fleet, 0, 16);
  ASSERT_TRUE(huge);
  EXPECT_EQ(huge->steps.at(12).size(), fleet.size());
}

}  // namespace
}  // namespace cleave::server
