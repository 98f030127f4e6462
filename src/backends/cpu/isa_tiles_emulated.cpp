// SPDX-License-Identifier: Apache-2.0
// backends/cpu/isa_tiles_emulated.cpp: the tile algorithm on any processor, slowly: for tests.
#include <bit>
#include <cstring>

#include "backends/cpu/isa_portable.hpp"
#include "backends/cpu/tile_table.hpp"

namespace cynosure::cpu {
namespace {

struct EmulatedTiles : Portable {
  static constexpr CpuIsa kIsa = CpuIsa::generic;

  class Tiles {
   public:
    template <int kTile>
    void zero() {
      std::memset(tile_[kTile], 0, sizeof tile_[kTile]);
    }
    template <int kTile>
    void load(const void* from, Index stride) {
      for (Index row = 0; row < 16; ++row)
        std::memcpy(tile_[kTile][row], static_cast<const char*>(from) + row * stride, 64);
    }
    template <int kTile>
    void store(void* to, Index stride) {
      for (Index row = 0; row < 16; ++row) std::memcpy(static_cast<char*>(to) + row * stride, tile_[kTile][row], 64);
    }
    template <int kC, int kA, int kB>
    void dot() {
      for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k)
          for (int column = 0; column < 16; ++column) {
            const std::uint32_t a = tile_[kA][row][k];
            const std::uint32_t b = tile_[kB][k][column];
            auto c = std::bit_cast<float>(tile_[kC][row][column]);
            c += low(a) * low(b);
            c += high(a) * high(b);
            tile_[kC][row][column] = std::bit_cast<std::uint32_t>(c);
          }
    }

   private:
    static float low(std::uint32_t pair) { return std::bit_cast<float>(pair << 16U); }
    static float high(std::uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000U); }
    std::uint32_t tile_[8][16][16];
  };

  static Float exp2(Float x) {
    for (int i = 0; i < kLanes; ++i) x[i] = __builtin_exp2f(x[i]);
    return x;
  }
  static void round_to_bfloat16(void* to, Float x) { store_bfloat16(to, x); }
  static void interleave(const void* even, const void* odd, void* to) {
    std::uint16_t low[kLanes];
    std::uint16_t high[kLanes];
    std::memcpy(low, even, sizeof low);
    std::memcpy(high, odd, sizeof high);
    std::uint32_t pair[kLanes];
    for (int i = 0; i < kLanes; ++i) pair[i] = low[i] | std::uint32_t{high[i]} << 16U;
    std::memcpy(to, pair, sizeof pair);
  }
};

}  // namespace

constinit const Kernels kEmulatedTileKernels = tile_table<EmulatedTiles>();

}  // namespace cynosure::cpu
