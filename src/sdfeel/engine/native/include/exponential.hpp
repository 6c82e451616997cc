// The exponential and the logarithm that losses need. Every C library rounds its own differently;
// these are rounded the same way everywhere.
#pragma once

#include "vectors.hpp"

namespace sdfeel {

template <class To, class From> SDFEEL_INLINE To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits of the same number");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

constexpr double LOG2_E = 0x1.71547652b82fep+0, LN_2 = 0x1.62e42fefa39efp-1;
constexpr double LN_2_REST = 0x1.abc9e3b39803fp-56; // ln 2 = LN_2 + LN_2_REST

constexpr double INVERSE_FACTORIALS[] = {
    1,           1,           1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
    1.0 / 5040,  1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600,
    1.0 / 6227020800};

// e to the x for x <= 0, by the first TERMS of its series around the nearest power of two; for four
// x, since one alone would wait for each of its sums.
constexpr int AT_ONCE = 4;
template <int TERMS> SDFEEL_INLINE void exponentials(const double *x, double *powers) {
    constexpr double TO_INTEGER = 0x1.8p52; // adding it leaves an integer in the lowest bits
    double shifted[AT_ONCE], rest[AT_ONCE], total[AT_ONCE];
    SDFEEL_UNROLL for (int k = 0; k < AT_ONCE; k++) {
        shifted[k] = fused(x[k], LOG2_E, TO_INTEGER);
        const double power = shifted[k] - TO_INTEGER;
        rest[k] = fused(-power, LN_2_REST, fused(-power, LN_2, x[k]));
        total[k] = INVERSE_FACTORIALS[TERMS];
    }
    SDFEEL_UNROLL for (int n = TERMS - 1; n >= 0; n--)
        SDFEEL_UNROLL for (int k = 0; k < AT_ONCE; k++)
            total[k] = fused(total[k], rest[k], INVERSE_FACTORIALS[n]);
    SDFEEL_UNROLL for (int k = 0; k < AT_ONCE; k++) {
        const int64_t exponent = same_bits<int64_t>(shifted[k]) - same_bits<int64_t>(TO_INTEGER);
        const double found = total[k] * same_bits<double>((exponent + 1023) << 52);
        powers[k] = x[k] > -700 ? found : x[k] != x[k] ? x[k] : 0;
    }
}
constexpr int FOR_FLOATS = 8, FOR_DOUBLES = 13; // how many terms each precision needs

// The natural logarithm of x >= 1.
inline double log_double(double x) {
    if (!(x < __builtin_inf())) return x;
    const int64_t bits = same_bits<int64_t>(x), root = 0x3fe6a09e667f3bcd; // of sqrt(1/2)
    const int64_t exponent = (bits - root) >> 52;
    const double m = same_bits<double>(bits - (exponent << 52)); // sqrt(1/2) <= m < sqrt(2)
    const double s = (m - 1) / (m + 1), square = s * s; // log m = 2 artanh s
    double series = 0;
    SDFEEL_UNROLL for (int n = 23; n > 1; n -= 2) series = fused(series, square, 1.0 / n);
    const double log_m = 2 * fused(s * square, series, s);
    return fused(double(exponent), LN_2, fused(double(exponent), LN_2_REST, log_m));
}

} // namespace sdfeel
