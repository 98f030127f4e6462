// SPDX-License-Identifier: Apache-2.0
// backends/cpu/isa_amx.cpp: the tile algorithm on AMX, its vectors on AVX-512 and AVX512-BF16.
//
// Tile instructions are written out, because a compiler's intrinsics for them may say nothing of the memory that they
// read (GCC 12: the configuration is then written after it was loaded).
#include <bit>

#include "backends/cpu/isa_avx512.hpp"
#include "backends/cpu/tile_table.hpp"

namespace cynosure::cpu {
namespace {

struct Amx : Avx512 {
  static constexpr CpuIsa kIsa = CpuIsa::amx;

  /// Eight tiles of 16 rows of 64 bytes. Configuring costs 50 to 90 ns, releasing 25.
  class Tiles {
   public:
    Tiles() {
      struct alignas(64) {
        std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
        std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
      } configuration;
      __asm__ volatile("ldtilecfg %0" : : "m"(configuration) : "memory");
    }
    ~Tiles() { __asm__ volatile("tilerelease" : : : "memory"); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;

    template <int kTile>
    void zero() {
      __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
    }
    template <int kTile>
    void load(const void* from, Index stride) {
      __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
    }
    template <int kTile>
    void store(void* to, Index stride) {
      __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
    }
    template <int kC, int kA, int kB>
    void dot() {
      __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
    }
  };

  /// 2^x to a relative 1e-7: 2^floor(x) times a polynomial in the rest, minimax for the relative error on [0, 1]. The
  /// instructions take care of -inf, of what underflows and of NaN.
  static Float exp2(Float x) {
    constexpr int floor_quietly = 9;
    const Float r = _mm512_reduce_ps(x, floor_quietly);
    Float q = fma(set(0.00187757669F), r, set(0.00898933969F));
    q = fma(q, r, set(0.0558263175F));
    q = fma(q, r, set(0.240153611F));
    q = fma(q, r, set(0.693153083F));
    q = fma(q, r, set(0.99999994F));
    return _mm512_scalef_ps(q, x);
  }
  static void round_to_bfloat16(void* to, Float x) {
    const __m256i y = std::bit_cast<__m256i>(_mm512_cvtneps_pbh(x));
    _mm256_storeu_si256(static_cast<__m256i*>(to), y);
  }
  static void interleave(const void* even, const void* odd, void* to) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(even)));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(odd)));
    _mm512_storeu_si512(to, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
};

}  // namespace

constinit const Kernels kAmxKernels = tile_table<Amx>();

}  // namespace cynosure::cpu
