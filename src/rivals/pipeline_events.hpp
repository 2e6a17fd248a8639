// What happens to a stage of a pipeline, in the order of time in which pipelines are played through.
#pragma once

#include <cstdint>

namespace cleave::rivals {

enum class PipelineEvent : std::uint8_t {
  forward_ready,   ///< a micro-batch's activations are there
  backward_ready,  ///< its gradients are
  computed,        ///< the stage is done with one
  uplink_free,     ///< the stage has sent one on
};

}  // namespace cleave::rivals
