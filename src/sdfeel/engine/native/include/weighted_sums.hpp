// Weighted sums of models, as combine.py computes them: one term after the other, in double, and
// each product is rounded only once, together with the addition.
#pragma once

#include "vectors.hpp"

namespace sdfeel {

#if defined(__FMA__) && defined(__GNUC__) && !defined(__clang__)
#define SDFEEL_WIDE
#if defined(__AVX512F__)
constexpr int WIDE = 8;
#else
constexpr int WIDE = 4;
#endif
typedef double WideDoubles __attribute__((vector_size(8 * WIDE)));
typedef float WideFloats __attribute__((vector_size(4 * WIDE)));

SDFEEL_INLINE WideDoubles widened(const float *row) {
    typedef float Loose __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));
    return __builtin_convertvector(*reinterpret_cast<const Loose *>(row), WideDoubles);
}
SDFEEL_INLINE WideDoubles fused(WideDoubles a, WideDoubles b, WideDoubles c) {
#if defined(__AVX512F__)
    return __builtin_ia32_vfmaddpd512_mask(a, b, c, (unsigned char)-1, 4);
#else
    return __builtin_ia32_vfmaddpd256(a, b, c);
#endif
}
#endif

// total += weight * row. If it is the FIRST term of a sum, `total` counts as zero, whatever it
// holds.
template <bool FIRST>
inline void add_multiple(double *total, const float *row, double weight, int64_t count) {
    int64_t p = 0;
#if defined(SDFEEL_WIDE)
    typedef double Loose __attribute__((vector_size(8 * WIDE), aligned(8), may_alias));
    const WideDoubles weights = WideDoubles{} + weight;
    for (; p + WIDE <= count; p += WIDE) {
        Loose *const to = reinterpret_cast<Loose *>(total + p);
        *to = fused(weights, widened(row + p), FIRST ? WideDoubles{} : WideDoubles(*to));
    }
#endif
    for (; p < count; p++) total[p] = fused(weight, double(row[p]), FIRST ? 0.0 : total[p]);
}

// (count) the sum of weight * term over `terms` rows, beginning at number `begin` of each row.
inline void sum_multiples(const float *const *rows, const double *weights, int64_t terms,
                          int64_t begin, int64_t count, float *sum) {
    int64_t p = 0;
#if defined(SDFEEL_WIDE)
    typedef float Loose __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));
    constexpr int SIDE = 4; // vectors whose sums do not wait for one another
    for (; p + SIDE * WIDE <= count; p += SIDE * WIDE) {
        WideDoubles totals[SIDE] = {};
        for (int64_t e = 0; e < terms; e++) {
            const WideDoubles weight = WideDoubles{} + weights[e];
            SDFEEL_UNROLL for (int i = 0; i < SIDE; i++)
                totals[i] = fused(weight, widened(rows[e] + begin + p + i * WIDE), totals[i]);
        }
        SDFEEL_UNROLL for (int i = 0; i < SIDE; i++)
            *reinterpret_cast<Loose *>(sum + p + i * WIDE) = __builtin_convertvector(totals[i], WideFloats);
    }
#endif
    for (; p < count; p++) {
        double total = 0;
        for (int64_t e = 0; e < terms; e++)
            total = fused(weights[e], double(rows[e][begin + p]), total);
        sum[p] = float(total);
    }
}

} // namespace sdfeel
