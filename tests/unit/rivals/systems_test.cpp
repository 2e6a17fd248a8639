// Every system on small studies: closed forms, conservation of bytes, limits of memory, losses and churn.
#include <cmath>
#include <regex>
#include <utility>

#include "collective.hpp"
#include "pipeline_grid.hpp"
#include "studies.hpp"
#include "workload.hpp"

namespace cleave::rivals {
namespace {

const std::vector<std::string> kOnDevices{
    "dtfm",      "dtfm-plus", "asteroid",    "asteroid-plus", "swarm",           "megatron",     "fsdp",
    "confidant", "fusionllm", "local-steps", "galaxy",        "tensor-parallel", "data-parallel"};

double update_s(const Workload& w, double share, double rate) {
  return Workload::kUpdateFlops * static_cast<double>(w.total_parameters()) * share / rate;
}

TEST(Registry, NamesEverySystemOnce) {
  std::vector<std::string> names;
  for (const auto& system : all_systems()) {
    names.push_back(system->name());
    EXPECT_FALSE(system->summary().empty());
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"cleave", "cleave-paper", "dtfm", "dtfm-plus", "asteroid", "asteroid-plus",
                                      "swarm", "megatron", "fsdp", "confidant", "fusionllm", "local-steps", "galaxy",
                                      "summa", "progfed", "tensor-parallel", "data-parallel", "cloud-gpu"}));
  EXPECT_EQ(find_system("gpipe"), nullptr);
}

// FLOP / (n peak utilisation).
TEST(CloudGpu, EqualsItsClosedForm) {
  StudyInput study = small_study(equal_devices(1, 1e9, 1e6));
  const SystemReport one = run("cloud-gpu", study);
  EXPECT_NEAR(one.step.value(), workload_of(study).step_flops() / (312e12 * 0.45), 1e-15);
  study.gpu.count = 4;
  study.gpu.utilisation = 0.9;
  EXPECT_NEAR(run("cloud-gpu", study).step.value(), one.step.value() / 8, 1e-15);
}

// State that the GPU cannot hold streams through the host link twice, and the host updates.
TEST(CloudGpu, StreamsWhatItCannotHold) {
  StudyInput study = small_study(equal_devices(1, 1e9, 1e6), 2);
  const Workload w = workload_of(study);
  study.gpu.memory = Bytes(w.total_parameters() * 14);
  study.gpu.host_link = BytesPerSecond(1e6);
  const SystemReport report = run("cloud-gpu", study);
  ASSERT_TRUE(report.feasible) << report.why;
  const auto parameters = static_cast<double>(w.total_parameters());
  EXPECT_NEAR(report.step.value(), 2 * parameters * 4 / 1e6 + 28 * parameters / 100e9, 1e-9);
  study.gpu.host_memory = Bytes(0);
  const SystemReport without = run("cloud-gpu", study);
  EXPECT_FALSE(without.feasible);
  EXPECT_NE(without.why.find("B;"), std::string::npos) << without.why;
}

// One device that holds the model is the same for every method: FLOP / rate and the update.
TEST(OneDevice, EveryMethodTakesItsComputeTime) {
  const StudyInput study = small_study(equal_devices(1, 1e9, 1e6));
  const Workload w = workload_of(study);
  for (const std::string& name : kOnDevices) {
    const SystemReport report = run(name, study);
    ASSERT_TRUE(report.feasible) << name;
    EXPECT_NEAR(report.step.value(), w.step_flops() / 1e9 + update_s(w, 1, 1e9), 1e-9 * report.step.value()) << name;
    EXPECT_EQ(report.bytes_up.value(), 0) << name;
  }
}

// Where links are so slow that a device trains by itself, it is the fastest one, whatever its links.
TEST(OneDevice, IsTheFastestOneWhateverItsLinks) {
  StudyInput study = small_study(equal_devices(4, 1e9, 1e2), 8);
  study.devices[2].compute = study.devices[2].compute * 10;
  StudyInput alone = small_study({study.devices[2]}, 8);
  alone.devices[0].id = DeviceId(0);
  for (const std::size_t better : {0, 2}) {
    study.devices[better].uplink = study.devices[better].downlink = BytesPerSecond(2e2);
    for (const std::unique_ptr<System>& system : all_systems()) {
      if (!system->uses_peer_links()) continue;
      const SystemReport report = system->simulate(study);
      ASSERT_TRUE(report.feasible) << system->name() << ": " << report.why;
      EXPECT_DOUBLE_EQ(report.step.value(), run(system->name(), alone).step.value()) << system->name() << " " << better;
    }
  }
}

// The gradients of a tied embedding meet in every system that cuts a model between embedding and head. Two devices, of
// which neither has room for all of it, and no shards of a stage, as there is one head.
TEST(Systems, ExchangeTheGradientsOfATiedEmbedding) {
  StudyInput study = small_study(equal_devices(2, 1e12, 1e6), 16);
  study.model = small_model(8);
  study.model.n_head = study.model.n_kv_head = 1;
  study.model.vocab_size = 4096;
  give_memory(study, 9.5e6);
  const std::int64_t table = std::int64_t{4096} * 64 * 4;
  for (const char* name :
       {"dtfm", "dtfm-plus", "asteroid", "asteroid-plus", "swarm", "megatron", "confidant", "fusionllm"}) {
    const SystemReport report = run(name, study);
    ASSERT_TRUE(report.feasible) << name << ": " << report.why;
    EXPECT_EQ(report.devices_used, 2) << name;
    EXPECT_GT(report.step.value(), static_cast<double>(table) / 1e6) << name;
    EXPECT_GT(report.bytes_up.value(), 2 * table) << name;
  }
}

// Slow devices, fast links: all rings but the last two units' run under the backward pass. The embedding has next to
// nothing to compute, so its ring waits for that of layer 0.
TEST(DataParallel, EqualDevicesHaveAClosedForm) {
  const StudyInput study = small_study(equal_devices(4, 1e6, 1e7), 8);
  const Workload w = workload_of(study);
  const SystemReport report = run("data-parallel", study);
  const double compute_s = w.step_flops() / 4 / 1e6, embedding_s = 2 * w.units[0].backward_flops / 1e6;
  const double layer_ring_s = ring_s(study, static_cast<double>(w.units[1].parameters * 4));
  const double embedding_ring_s = ring_s(study, static_cast<double>(w.units[0].parameters * 4));
  ASSERT_LT(embedding_s, layer_ring_s);
  EXPECT_NEAR(report.step.value(), compute_s - embedding_s + layer_ring_s + embedding_ring_s + update_s(w, 1, 1e6),
              1e-6);
  EXPECT_EQ(report.devices_used, 4);
  EXPECT_EQ(report.bytes_down, report.bytes_up);
}

TEST(DataParallel, SharesFollowTheSpeeds) {
  StudyInput study = small_study(equal_devices(2, 1e6, 1e9), 9);
  study.devices[1].compute = FlopsPerSecond(2e6);
  const Workload w = workload_of(study);
  // Three sequences and six take equally long.
  const double expected_s = w.step_flops() / 9 * 3 / 1e6 + update_s(w, 1, 1e6);
  EXPECT_NEAR(run("data-parallel", study).step.value(), expected_s, 1e-3 * expected_s);
}

// Memory for a quarter of the model: four shards, per layer two all-reduces each way, one for embedding and head each.
TEST(TensorParallel, FourEqualShardsHaveAClosedForm) {
  StudyInput study = small_study(equal_devices(4, 1e9, 1e6, 0.001), 1);
  const Workload w = workload_of(study);
  const double state = static_cast<double>(w.total_parameters() * 16);
  study.devices = equal_devices(4, 1e9, 1e6, 0.001, static_cast<std::int64_t>(state * 0.45));
  const SystemReport report = run("tensor-parallel", study);
  ASSERT_TRUE(report.feasible) << report.why;
  EXPECT_EQ(report.layout, "1 replicas of 4 shards, micro-batches of 1");
  const double activation = 32 * 64 * 4;
  EXPECT_NEAR(report.step.value(),
              w.step_flops() / 4 / 1e9 + (4 * 4 + 2) * ring_s(study, activation) + update_s(w, 0.25, 1e9), 1e-9);
}

// No memory for activations: two more all-reduces a layer, and the forward pass once more.
TEST(TensorParallel, WhatRunsAgainIsReducedAgain) {
  StudyInput study = small_study(equal_devices(4, 1e9, 1e6, 0.001), 1);
  const Workload w = workload_of(study);
  const std::size_t units = w.units.size();
  const double activation = 32 * 64 * 4, kept = w.input_bytes(0, units) + w.largest_kept_bytes(0, units);
  ASSERT_LT(kept + 100, w.kept_bytes(0, units));
  const double need = (static_cast<double>(w.total_parameters() * 16) + kept) / 4 + 2 * activation;
  for (fleet::DeviceProfile& device : study.devices) device.memory = Bytes(static_cast<std::int64_t>(need) + 10);
  const SystemReport report = run("tensor-parallel", study);
  ASSERT_EQ(report.layout, "1 replicas of 4 shards, micro-batches of 1, layers computed again");
  EXPECT_NEAR(report.step.value(),
              (w.step_flops() + w.forward_flops(0, units)) / 4 / 1e9 + (4 * 6 + 2) * ring_s(study, activation) +
                  update_s(w, 0.25, 1e9),
              1e-9);
}

// One stage a device and no transfer time to speak of: (M + S - 1) / M times the slowest stage's work.
TEST(Dtfm, PipelineOfEqualStagesHasItsClosedForm) {
  StudyInput study = small_study(equal_devices(2, 1e6, 1e12), 8);
  study.dtfm.stages = 2;
  const Workload w = workload_of(study);
  const std::vector<std::size_t> cuts = cut_evenly(w, 2);
  double slowest_s = 0, other_s = 0;
  for (std::size_t s = 0; s < 2; ++s) {
    const double time_s = (w.forward_flops(cuts[s], cuts[s + 1]) + w.backward_flops(cuts[s], cuts[s + 1])) / 1e6;
    (time_s > slowest_s ? other_s = std::exchange(slowest_s, time_s) : other_s = std::max(other_s, time_s));
  }
  const SystemReport report = run("dtfm", study);
  ASSERT_TRUE(report.feasible) << report.why;
  EXPECT_NE(report.layout.find("2 stages x 1 pipelines, micro-batches of 1"), std::string::npos) << report.layout;
  const double least_s = 8 * slowest_s + other_s;
  const double update = update_s(w, 1, 1e6);
  EXPECT_GE(report.step.value(), least_s - 1e-9);
  EXPECT_LE(report.step.value(), least_s + update);
}

TEST(Systems, BytesAreConservedAndLimitsKept) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const StudyInput study = small_study(unlike_devices(10, seed, 3e6, 9e6), 12);
    std::int64_t most = 0;
    for (const auto& device : study.devices) most = std::max(most, device.memory.value());
    for (const std::string& name : kOnDevices) {
      const SystemReport report = run(name, study);
      ASSERT_TRUE(report.feasible) << name << ": " << report.why;
      const auto up = static_cast<double>(report.bytes_up.value());
      EXPECT_NEAR(up, static_cast<double>(report.bytes_down.value()), 1e-5 * up + 64) << name;
      EXPECT_GE(report.step.value(), report.lower_bound.value() * (1 - 1e-9)) << name;
      EXPECT_GE(report.step.value(), report.compute.value() * (1 - 1e-9)) << name;
      EXPECT_LE(report.device_memory_max.value(), most) << name;
      EXPECT_GT(report.energy.value(), 0) << name;
      EXPECT_LE(report.devices_used, 10) << name;
    }
  }
}

// Two sites with a slow link between: a device's links are taken for what it sends to its own neighbours, at their
// rates.
TEST(Systems, BoundsHoldOverMeasuredLinks) {
  StudyInput study = small_study(unlike_devices(8, 1, 1.5e6, 2e6), 12);
  study.links = fleet::LinkMatrix(8, {});
  for (std::int64_t i = 0; i < 8; ++i) {
    for (std::int64_t j = 0; j < 8; ++j) {
      const double rate = i / 4 == j / 4 ? 4e6 : 4e3;
      study.links.set(DeviceId(i), DeviceId(j), {Seconds(0.001), BytesPerSecond(rate)});
    }
  }
  for (const std::string& name : kOnDevices) {
    const SystemReport report = run(name, study);
    if (!report.feasible) continue;  // data-parallel has no room
    EXPECT_GE(report.step.value(), report.lower_bound.value() * (1 - 1e-9)) << name;
  }
}

TEST(Systems, TheSameStudyHasTheSameReport) {
  const StudyInput study = small_study(unlike_devices(9, 3, 3e6, 9e6), 12);
  for (const auto& system : all_systems()) {
    const SystemReport one = system->simulate(study), two = system->simulate(study);
    EXPECT_EQ(one.step, two.step) << system->name();
    EXPECT_EQ(one.bytes_up, two.bytes_up) << system->name();
    EXPECT_EQ(one.layout, two.layout) << system->name();
  }
}

TEST(Systems, ADeviceThatHoldsNothingIsLeftOut) {
  StudyInput study = small_study(equal_devices(4, 1e9, 1e8), 8);
  study.devices[1].memory = Bytes(1000);
  for (const std::string& name : kOnDevices) {
    const SystemReport report = run(name, study);
    ASSERT_TRUE(report.feasible) << name << ": " << report.why;
    EXPECT_LE(report.devices_used, 3) << name;
  }
}

TEST(Systems, SayWhatMemoryIsMissing) {
  const StudyInput study = small_study(equal_devices(8, 1e9, 1e6, 0, 100'000));
  for (const std::string& name : kOnDevices) {
    const SystemReport report = run(name, study);
    EXPECT_FALSE(report.feasible) << name;
    EXPECT_TRUE(std::regex_search(report.why, std::regex("[0-9] [kMG]?B"))) << name << ": " << report.why;
  }
}

// Idle power all the time; what work adds while the busiest of interface and processor is taken.
TEST(ServerEnergy, HasAClosedForm) {
  StudyInput study = small_study(equal_devices(4, 1e9, 1e6));
  study.plan.server.nic_in = study.plan.server.nic_out = BytesPerSecond(1e6);
  study.plan.server.power_idle = Watts(100);
  study.plan.server.power_load = Watts(300);
  const SystemReport cleave = run("cleave", study), rival = run("dtfm", study);
  ASSERT_TRUE(cleave.feasible && rival.feasible);
  EXPECT_GT(cleave.server_kernels.value(), 0);
  const double busy = std::max({cleave.server_in.value(), cleave.server_out.value(), cleave.server_kernels.value()});
  ASSERT_LT(busy, cleave.step.value());
  EXPECT_DOUBLE_EQ(cleave.server_energy.value(), 100 * cleave.step.value() + 200 * busy);
  EXPECT_DOUBLE_EQ(rival.server_energy.value(), 100 * rival.step.value());  // its devices need no server
}

// A processor that takes longer than the interface is what counts.
TEST(ServerEnergy, CountsKernels) {
  StudyInput study = small_study(equal_devices(2, 1e9, 1e9));
  study.plan.server.memory_bandwidth = BytesPerSecond(1e7);
  const SystemReport report = run("cleave", study);
  EXPECT_GT(report.server_kernels, std::max(report.server_in, report.server_out));
  EXPECT_LE(report.server_kernels, report.step);
  EXPECT_DOUBLE_EQ(report.server_energy.value(), 200 * report.step.value() + 300 * report.server_kernels.value());
}

// Relayed bytes take the server's interface both ways; cleave's never travel between devices.
TEST(PeerLinks, RelayedTrafficTakesTheServersInterface) {
  StudyInput study = small_study(equal_devices(4, 1e9, 1e6));
  study.plan.server.nic_in = BytesPerSecond(2e4);
  study.plan.server.nic_out = BytesPerSecond(4e4);
  for (const std::string& name : kOnDevices) {
    SCOPED_TRACE(name);
    study.peer_links = PeerLinks::direct;
    const SystemReport direct = run(name, study);
    study.peer_links = PeerLinks::relayed;
    const SystemReport relayed = run(name, study);
    ASSERT_TRUE(direct.feasible && relayed.feasible) << relayed.why;
    EXPECT_DOUBLE_EQ(relayed.server_in.value(), static_cast<double>(relayed.bytes_up.value()) / 2e4);
    EXPECT_GE(relayed.step, std::max(relayed.server_in, relayed.server_out));
    EXPECT_GE(relayed.step, direct.step);
    EXPECT_EQ(direct.server_in.value(), 0);
    if (direct.bytes_up.value() > 0) { EXPECT_GT(relayed.server_energy, direct.server_energy); }
  }
  study.peer_links = PeerLinks::direct;
  const Seconds direct = run("cleave", study).step;
  study.peer_links = PeerLinks::relayed;
  EXPECT_EQ(run("cleave", study).step, direct);
}

// An interface without limit relays for nothing, over the devices' own links.
TEST(PeerLinks, AWideInterfaceRelaysForNothing) {
  StudyInput study = small_study(unlike_devices(5, 3));
  study.plan.server.nic_in = study.plan.server.nic_out = fleet::kUnlimitedRate;
  for (const std::string& name : kOnDevices) {
    study.peer_links = PeerLinks::direct;
    const SystemReport direct = run(name, study);
    study.peer_links = PeerLinks::relayed;
    const SystemReport relayed = run(name, study);
    EXPECT_EQ(relayed.feasible, direct.feasible) << name;
    EXPECT_EQ(relayed.step, direct.step) << name;
  }
}

// Without a way from device to device one of them is left, the fastest that holds the model; or nothing.
TEST(PeerLinks, NoneLeavesOneDevice) {
  StudyInput study = small_study(equal_devices(4, 1e9, 1e9));
  study.devices[1].compute = FlopsPerSecond(5e9);
  study.devices[2].compute = FlopsPerSecond(9e9);
  study.devices[2].memory = Bytes(1000);
  study.peer_links = PeerLinks::none;
  for (const std::string& name : kOnDevices) {
    SCOPED_TRACE(name);
    const SystemReport report = run(name, study);
    ASSERT_TRUE(report.feasible) << report.why;
    EXPECT_EQ(report.devices_used, 1);
    EXPECT_EQ(report.devices, 4);
    EXPECT_EQ(report.bytes_up.value(), 0);
    EXPECT_GE(report.step.value(), workload_of(study).step_flops() / 5e9 * (1 - 1e-12));
  }
  for (fleet::DeviceProfile& device : study.devices) device.memory = Bytes(1000);
  const SystemReport report = run("dtfm", study);
  EXPECT_FALSE(report.feasible);
  EXPECT_NE(report.why.find("fleet.peer_links"), std::string::npos) << report.why;
}

// Devices that are not used take their power at rest all the same.
TEST(PeerLinks, WhoIsLeftOutIdles) {
  StudyInput study = small_study(equal_devices(4, 1e9, 1e9));
  for (fleet::DeviceProfile& device : study.devices) {
    device.power_compute = device.power_radio = Watts(0);
    device.power_idle = Watts(3);
  }
  study.peer_links = PeerLinks::none;
  for (const std::string& name : kOnDevices) {
    const SystemReport report = run(name, study);
    ASSERT_EQ(report.devices_used, 1) << name;
    EXPECT_DOUBLE_EQ(report.energy.value(), 4 * 3 * report.step.value()) << name;
  }
}

// A device of every replica can be missed as long as another one holds the same.
TEST(Losses, CopiesCarryOnAndSingleCopiesDoNot) {
  StudyInput study = small_study(equal_devices(4, 1e7, 1e7), 8);
  study.loss = {.devices = 1, .progress = 0.5, .seed = 0};
  for (const char* name : {"data-parallel", "asteroid"}) {
    const SystemReport report = run(name, study);
    ASSERT_TRUE(report.feasible) << name;
    EXPECT_TRUE(std::isfinite(report.recovery.value())) << name << ": " << report.why;
    EXPECT_GE(report.recovery, study.detection) << name;
    EXPECT_LT(report.recovery, report.step + study.detection) << name;
  }
  study.dtfm.stages = 4;  // one pipeline: no stage has a copy
  const SystemReport pipeline = run("dtfm", study);
  EXPECT_TRUE(std::isinf(pipeline.recovery.value()));
  EXPECT_NE(pipeline.why.find("does not survive"), std::string::npos);
}

// On links so slow one device does the batch alone soonest. Where it may be lost, one that others can go on from is
// tried too.
TEST(Losses, ASecondReplicaIsTried) {
  for (const char* name : {"swarm", "megatron"}) {
    StudyInput study = small_study(equal_devices(4, 1e9, 1e3), 8);
    ASSERT_EQ(run(name, study).devices_used, 1) << name;
    study.loss = {.devices = 1, .progress = 0.5, .seed = 0};
    const SystemReport report = run(name, study);
    EXPECT_TRUE(std::isfinite(report.recovery.value())) << name << ": " << report.why;
    EXPECT_GE(report.devices_used, 2) << name << ": " << report.layout;
    study.loss = {};
    study.churn = {{Seconds(1e-3), DeviceId(0), fleet::ChurnKind::leave, 1.0}};
    EXPECT_TRUE(run(name, study).feasible) << name;
  }
}

// Half of two equal replicas lost half-way: a quarter of the batch is done again and a quarter has still to be done, by
// one device instead of two. The same for replicas of a pipeline's only stage.
TEST(Losses, TwoReplicasHaveAClosedForm) {
  StudyInput study = small_study(equal_devices(2, 1e6, 1e12), 8);
  study.loss = {.devices = 1, .progress = 0.5, .seed = 0};
  const Workload w = workload_of(study);
  const double alone_s = w.step_flops() / 1e6;
  for (const char* name : {"data-parallel", "swarm"}) {
    const SystemReport report = run(name, study);
    // Left after the loss: 3/4 of the batch by one device; undisturbed: half of the step of two.
    const double expected_s = study.detection.value() + 0.75 * alone_s - 0.25 * alone_s;
    EXPECT_NEAR(report.recovery.value(), expected_s, 0.01 * expected_s) << name << ": " << report.layout;
  }
}

// Nobody does anything about a loss before it is noticed.
TEST(Losses, AreNoticedAfterTheTimeOfDetection) {
  StudyInput study = small_study(equal_devices(4, 1e7, 1e7), 8);
  study.loss = {.devices = 1, .progress = 0.5, .seed = 0};
  for (const std::string& name : kOnDevices) {
    study.detection = Seconds(0.25);
    const SystemReport soon = run(name, study);
    study.detection = Seconds(0.75);
    const SystemReport late = run(name, study);
    ASSERT_TRUE(soon.feasible) << name;
    if (std::isinf(soon.recovery.value())) continue;
    EXPECT_NEAR((late.recovery - soon.recovery).value(), 0.5, 1e-9) << name;
  }
  const SystemReport report = run("cleave", study);
  ASSERT_FALSE(report.losses.empty());
  for (const auto& [type, loss] : report.losses) EXPECT_NEAR(loss.detection.value(), 0.75, 1e-9) << type;
}

// The floor holds for any layout, so no layout's bound is below it.
TEST(Systems, TheBoundOfALayoutIsNoLessThanTheFloor) {
  for (const double compute : {1e7, 1e11}) {
    for (const std::int64_t devices : {1, 2, 8}) {
      const SystemReport report = run("cleave", small_study(equal_devices(devices, compute, 1e6), 8));
      ASSERT_TRUE(report.feasible) << report.why;
      EXPECT_GT(report.floor.value(), 0);
      EXPECT_GE(report.lower_bound, report.floor) << devices;
      EXPECT_LE(report.lower_bound, report.step) << devices;
    }
  }
}

TEST(Losses, CleaveLosesNoMoreThanItsBlocks) {
  StudyInput study = small_study(equal_devices(8, 1e8, 1e6), 8);
  study.loss = {.devices = 1, .progress = 0.5, .seed = 0};
  const SystemReport report = run("cleave", study);
  ASSERT_TRUE(report.feasible);
  EXPECT_TRUE(std::isfinite(report.recovery.value()));
  EXPECT_LT(report.recovery.value(), 0.5 * report.step.value() + study.detection.value());
}

TEST(Churn, DevicesComeAndGo) {
  StudyInput study = small_study(equal_devices(6, 1e7, 1e7), 12);
  study.steps = 3;
  const double step_s = run("data-parallel", study).step.value();
  study.churn = {{Seconds(0.4 * step_s), DeviceId(2), fleet::ChurnKind::leave, 1.0},
                 {Seconds(0.8 * step_s), DeviceId(2), fleet::ChurnKind::join, 1.0}};
  const SystemReport report = run("data-parallel", study);
  ASSERT_TRUE(report.feasible) << report.why;
  EXPECT_GT(report.recovery.value(), 0);
  EXPECT_NEAR(report.step.value(), step_s + report.recovery.value(), 1e-6 * step_s);
}

TEST(Churn, AMethodThatCannotGoOnSaysWhere) {
  StudyInput study = small_study(equal_devices(4, 1e7, 1e7), 8);
  study.dtfm.stages = 4;
  study.steps = 2;
  study.churn = {{Seconds(1e-3), DeviceId(0), fleet::ChurnKind::leave, 1.0}};
  const SystemReport report = run("dtfm", study);
  EXPECT_FALSE(report.feasible);
  EXPECT_NE(report.why.find("step 1"), std::string::npos) << report.why;
}

}  // namespace
}  // namespace cleave::rivals
