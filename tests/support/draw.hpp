// Cases drawn at random from a seed, and how many of them a test tries.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include <gtest/gtest.h>

#include "cleave/base/random.hpp"

namespace cleave::testing_support {

/// Numbers that follow each other from a seed. `stream`: another one for another kind of case.
class Draw {
 public:
  Draw(std::uint64_t seed, std::uint32_t stream) : random_(seed, Purpose::test, stream) {}
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random_.below(next_++, static_cast<std::uint64_t>(most - least + 1)));
  }
  double uniform() { return random_.uniform(next_++); }
  bool chance(double share) { return uniform() < share; }
  /// Its logarithm is uniform.
  double scale(double least, double most) {
    return std::exp(std::log(least) + uniform() * (std::log(most) - std::log(least)));
  }
  template <class Of>
  auto one_of(const Of& all) {
    return std::data(all)[random_.below(next_++, std::size(all))];
  }

 private:
  Random random_;
  std::uint64_t next_ = 1;
};

/// Of the usual number of cases, or of those that the environment variable asks for (FIRST:COUNT; jobs/hunt.sh), how
/// many hold: `holds(seed)` is false where the devices drawn are too small. At least one in `one_in` are to be large
/// enough.
template <class Holds>
void expect_of_drawn(const char* variable, std::uint64_t usual, std::uint64_t one_in, const Holds& holds) {
  std::uint64_t first = 0, count = usual, held = 0;
  if (const char* const asked = std::getenv(variable)) (void)std::sscanf(asked, "%lu:%lu", &first, &count);
  for (std::uint64_t seed = first; seed < first + count; ++seed) held += holds(seed) ? 1 : 0;
  EXPECT_GE(one_in * held, count) << "most fleets are too small";
}

}  // namespace cleave::testing_support
