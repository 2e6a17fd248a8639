// Story: what goes wrong in one simulated run, drawn from a seed: who does what, at which of its answers. A value, so
// that a story that ends badly can be told again with less in it.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cleave/base/random.hpp"

namespace cleave::simulation {

enum class Deed : std::uint8_t {
  withhold,  // the answer is never sent
  delay,     // sent later, and so behind others
  repeat,    // sent again and again
  corrupt,   // one bit flipped on the way
  truncate,  // cut short
  lie,       // one number wrong, the checksum right; where a sample is checked, in some answers in a row
  rename,    // under another tasklet's id
  redirect,  // under another device's id
  reshape,   // of another shape
  refuse,    // in place of the answer: no
  complain,  // beside the answer: a task came damaged, though none did
  rubbish,   // beside the answer: bytes without sense
  presume,   // beside the answer: a message of a kind that has no business here, with another process's id
  flood,     // pongs without a pause, for a while
  deaf,      // reads nothing for a while
  mute,      // says nothing for a while
  die,       // ends
};
inline constexpr std::array kDeeds{"withhold", "delay",    "repeat",  "corrupt", "truncate", "lie",
                                   "rename",   "redirect", "reshape", "refuse",  "complain", "rubbish",
                                   "presume",  "flood",    "deaf",    "mute",    "die"};

/// Deeds that a device may be left out for.
inline bool is_wrong(Deed deed) {
  return deed == Deed::lie || deed == Deed::rename || deed == Deed::redirect || deed == Deed::reshape ||
         deed == Deed::refuse || deed == Deed::presume;
}

struct Act {
  int rank = 1;
  std::int64_t answer = 0;  // before which of the rank's answers
  Deed deed = Deed::withhold;
  std::int64_t amount = 1;  // of seconds, repetitions, answers, ...
};

struct Story {
  std::uint64_t seed = 0;
  int ranks = 2;  // of devices
  std::int64_t devices = 3;
  bool live = false;  // clock off; else virtual
  bool parts = false;
  bool audit = false;   // verification by audit of every block; else by its operands
  bool sample = false;  // half of the blocks are checked, the others used as they come
  bool sixteen_bits = false;
  bool stages = false;   // the step is laid out in stages; else in tiles
  bool quorum = false;   // everything is computed by a second device, too
  bool cramped = false;  // devices that have room for some of the stages only
  std::vector<Act> acts;
};

inline Story draw_story(std::uint64_t seed) {
  const Random random(seed, Purpose::test, 77);
  std::uint64_t draws = 0;
  const auto below = [&](std::uint64_t count) { return static_cast<std::int64_t>(random.below(draws++, count)); };
  Story story;
  story.seed = seed;
  story.ranks = 1 + static_cast<int>(below(3));
  story.devices = story.ranks + below(4);
  story.live = below(2) == 1;
  story.parts = below(2) == 1;
  story.audit = below(4) == 0;
  story.sixteen_bits = below(4) == 0;
  const std::int64_t acts = below(16);
  for (std::int64_t i = 0; i < acts; ++i) {
    story.acts.push_back({.rank = 1 + static_cast<int>(below(static_cast<std::uint64_t>(story.ranks))),
                          .answer = below(below(2) == 0 ? 10 : 120),
                          .deed = static_cast<Deed>(below(kDeeds.size())),
                          .amount = 1 + below(below(4) == 0 ? 100 : 8)});
  }
  return story;
}

/// The same where a sample of the blocks is checked, with one rank more that lies in some answers in a row: some of
/// them are used before it is found out.
inline Story draw_sampled_story(std::uint64_t seed) {
  Story story = draw_story(seed);
  const Random random(seed, Purpose::test, 78);
  story.audit = false;
  story.sample = true;
  story.acts.push_back({.rank = 1 + static_cast<int>(random.below(0, static_cast<std::uint64_t>(story.ranks))),
                        .answer = static_cast<std::int64_t>(random.below(1, 60)),
                        .deed = Deed::lie,
                        .amount = 1 + static_cast<std::int64_t>(random.below(2, 12))});
  return story;
}

/// The same where every block is computed by a second device, which says no more than a digest.
inline Story draw_paired_story(std::uint64_t seed) {
  Story story = draw_story(seed);
  story.audit = false;
  story.quorum = true;
  return story;
}

/// The same where the step is laid out in stages: whatever is returned is recomputed by the server or a second device.
inline Story draw_staged_story(std::uint64_t seed) {
  Story story = draw_story(seed);
  const Random random(seed, Purpose::test, 79);
  story.stages = true;
  story.quorum = random.below(0, 2) == 0;
  story.audit = !story.quorum;
  story.cramped = !story.live && story.devices > 2 && random.below(1, 2) == 0;
  return story;
}

inline std::string show(const Story& story) {
  std::string text =
      fmt::format("seed {}: {} devices on {} ranks, clock {}{}{}{}{}{}{}{}", story.seed, story.devices, story.ranks,
                  story.live ? "off" : "virtual", story.stages ? ", stages" : "", story.cramped ? ", cramped" : "",
                  story.parts ? ", parts" : "", story.audit ? ", audit" : "", story.quorum ? ", quorum" : "",
                  story.sample ? ", sample" : "", story.sixteen_bits ? ", bf16" : "");
  for (const Act& act : story.acts) {
    text += fmt::format("\n  rank {} before answer {}: {} {}", act.rank, act.answer,
                        kDeeds[static_cast<std::size_t>(act.deed)], act.amount);
  }
  return text;
}

}  // namespace cleave::simulation
