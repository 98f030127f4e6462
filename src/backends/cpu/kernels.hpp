// SPDX-License-Identifier: Apache-2.0
// backends/cpu/kernels.hpp: the table of functions that each instruction set fills in.
//
// One generic algorithm (forward.hpp, backward.hpp over tile.hpp, row.hpp and score.hpp) is compiled once for each
// instruction set, over its page of primitives (isa_*.cpp). Only these tables leave such a file: all else in it has
// internal linkage, so that the linker cannot hand code for one processor to another.
#pragma once

#include <cstdint>

#include "backends/cpu/plan.hpp"

namespace cynosure::cpu {

struct Kernels {
  CpuIsa isa;
  /// Sizes that suit the registers and caches.
  Blocks (*forward_blocks)(const Attention& call);
  Blocks (*backward_blocks)(const Attention& call);
  /// Of a packed block of keys and a forward task's scratch; of a packed block of rows and a backward task's scratch.
  std::int64_t (*key_block_bytes)(const ForwardPlan& plan);
  std::int64_t (*forward_scratch_bytes)(const ForwardPlan& plan);
  std::int64_t (*row_block_bytes)(const BackwardPlan& plan);
  std::int64_t (*backward_scratch_bytes)(const BackwardPlan& plan);

  /// Runs one task of a pass; tasks of a pass are independent. `scratch`: the calling thread's own.
  using Forward = void (*)(const ForwardPlan& plan, std::int64_t task, char* scratch);
  using Backward = void (*)(const BackwardPlan& plan, std::int64_t task, char* scratch);
  Forward forward_head;             ///< by heads
  Forward pack_keys, forward_part;  ///< in parts, one pass after the other
  Forward forward_split, combine_splits;
  Backward backward_head;
  Backward prepare_part, backward_part, finish_part;
  /// One tile of the gradient of a term (term_tiles()), after the passes in parts.
  void (*term_gradient)(const BackwardPlan& plan, const TermGradient& gradient, std::int64_t task, char* scratch);
};

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

/// The tile algorithm (forward_tiles.hpp over tiles.hpp): only the functions of the passes that it has.
extern const Kernels kAmxKernels;
extern const Kernels kEmulatedTileKernels;

/// The best kernels in this build up to `isa` that serve every call. In kernels_x86.cpp or kernels_portable.cpp, by
/// architecture.
[[nodiscard]] const Kernels& kernels(CpuIsa isa);
/// Asks the system for the tile registers, once a process. False where they cannot be had.
[[nodiscard]] bool tiles_granted();

}  // namespace cynosure::cpu
