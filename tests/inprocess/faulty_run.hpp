// Runs whose devices come and go, or whose messages are tampered with on their way.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "churn_schedule.hpp"
#include "run.hpp"
#include "support/faulty_transport.hpp"

namespace cleave::testing_run {

/// Trains once for each of so many schedules, and expects these bits each time, and a tasklet lost in each on average.
inline void expect_same_bits_while_devices_come_and_go(Setting s, std::uint64_t schedules, std::uint64_t expected) {
  const Seconds whole = train(s).time;
  std::int64_t lost = 0, by_server = 0;
  for (std::uint64_t seed = 0; seed < schedules; ++seed) {
    s.server_sums = seed % 2 == 1;
    s.churn = random_schedule(seed, std::ssize(s.devices), whole, /*liars=*/false);
    const Outcome outcome = train(s);
    ASSERT_EQ(outcome.hash, expected) << "schedule " << seed;
    lost += outcome.lost;
    by_server += outcome.server_sums;
  }
  EXPECT_GT(lost, static_cast<std::int64_t>(schedules));
  EXPECT_GT(by_server, 0) << "the server summed nothing";
}

/// Messages of `kind`, of which the first `skip` are left alone: four of the others are hit, about every second one.
struct MessageFault {
  comm::Kind kind;
  comm::FaultKind fault;
  std::int64_t skip;  ///< chooses the phase of the run
};

inline std::string name_of(const MessageFault& of) {
  static constexpr const char* kFaults[] = {"drop", "delay", "twice", "corrupt", "truncate"};
  return std::string(comm::name_of(of.kind)) + "_" + kFaults[static_cast<int>(of.fault)] + "_after" +
         std::to_string(of.skip);
}

/// Trains over two device ranks, and expects that the run ends with these bits and that some message was hit.
inline void expect_same_bits_under(const MessageFault& c, const Setting& s, std::uint64_t expected) {
  server::TrainerOptions options = options_of(s);
  options.fleet.patience = Seconds(0.15);
  const comm::Direction direction = c.kind == comm::Kind::task ? comm::Direction::sending : comm::Direction::receiving;
  comm::LoopbackHub hub(3);
  comm::FaultyTransport server(hub.endpoint(0),
                               {{.direction = direction,
                                 .kind = c.kind,
                                 .fault = c.fault,
                                 .probability = 0.5,
                                 .skip = c.skip,
                                 .count = 4,
                                 .delay = Seconds(0.3)}},
                               5);
  std::vector<std::thread> hosts;
  for (int rank = 1; rank < 3; ++rank) {
    hosts.emplace_back([endpoint = std::shared_ptr<comm::Transport>(hub.endpoint(rank))] {
      (void)device::run_device_host(*endpoint);
    });
  }
  server::ParameterStore parameters = initial_parameters(s);
  {
    server::Trainer trainer(parameters, options, &server);
    for (std::int64_t step = 0; step < s.steps; ++step) (void)trainer.step(step, batch_of(s, step));
    (void)trainer.say_goodbye(Seconds(10));
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(parameters.hash(), expected);
  EXPECT_GT(server.caused().front(), 0) << "no message was hit";
}

/// Every fault of tasks and of results, after each of these numbers of messages.
inline std::vector<MessageFault> all_message_faults(const std::vector<std::int64_t>& skips) {
  std::vector<MessageFault> faults;
  for (const comm::Kind kind : {comm::Kind::task, comm::Kind::result}) {
    for (const comm::FaultKind fault : {comm::FaultKind::drop, comm::FaultKind::delay, comm::FaultKind::twice,
                                        comm::FaultKind::corrupt, comm::FaultKind::truncate}) {
      for (const std::int64_t skip : skips) faults.push_back({kind, fault, skip});
    }
  }
  return faults;
}

}  // namespace cleave::testing_run
