// What servers and clients do with whole rows, bit for bit as NumPy does it: noise, lengths, sums,
// and sorting the numbers of each column.
#pragma once

#include "normal.hpp"

namespace sdfeel {

template <class T, int N> struct Vector {
    typedef T type __attribute__((vector_size(N * sizeof(T))));
    typedef T loose __attribute__((vector_size(N * sizeof(T)), aligned(sizeof(T)), may_alias));
};
template <class T, int N> using Some = typename Vector<T, N>::type;
template <class T, int N> SDFEEL_INLINE Some<T, N> some(const T *from) {
    return *reinterpret_cast<const typename Vector<T, N>::loose *>(from);
}
template <class T, int N> SDFEEL_INLINE void put(T *to, Some<T, N> values) {
    *reinterpret_cast<typename Vector<T, N>::loose *>(to) = values;
}
constexpr int EIGHT = 8; // NumPy adds in eight chains
typedef Some<double, EIGHT> Doubles;
typedef Some<int64_t, EIGHT> Whole;
SDFEEL_INLINE Doubles all_eight(double x) { return Doubles{x, x, x, x, x, x, x, x}; }
SDFEEL_INLINE Doubles doubles(const float *from) {
    return __builtin_convertvector((some<float, EIGHT>(from)), Doubles);
}

SDFEEL_INLINE void put_singles(float *to, Doubles values) {
    put<float, EIGHT>(to, __builtin_convertvector(values, Some<float, EIGHT>));
}

// The sum of `count` numbers, as NumPy adds them: halves of halves, then eight chains.
template <class Eight, class One>
double pairwise(const Eight &eight, const One &one, int64_t begin, int64_t count) {
    if (count > 128) {
        const int64_t half = count / 2 - count / 2 % 8;
        return pairwise(eight, one, begin, half) +
               pairwise(eight, one, begin + half, count - half);
    }
    double total = 0;
    int64_t i = 0;
    if (count >= 8) {
        Doubles sums = eight(begin);
        for (i = 8; i + 8 <= count; i += 8) sums += eight(begin + i);
        total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
    for (; i < count; i++) total += one(begin + i);
    return total;
}

// The pairs that Batcher's sorting network compares in order to sort `rows` numbers.
struct Pairs {
    static constexpr int MOST = 4096;
    uint8_t low[MOST], high[MOST];
    int count = 0;
    explicit Pairs(int rows) {
        for (int p = 1; p < rows; p *= 2)
            for (int k = p; k >= 1; k /= 2)
                for (int j = k % p; j + k < rows; j += 2 * k)
                    for (int i = j; i < j + k && i + k < rows; i++)
                        if (i / (2 * p) == (i + k) / (2 * p))
                            low[count] = uint8_t(i), high[count++] = uint8_t(i + k);
    }
};
constexpr int MOST_ROWS = 256;

// Keys that are ordered like the floating-point numbers they are made of, -0 before 0.
SDFEEL_INLINE Some<int32_t, 16> turned(Some<int32_t, 16> bits) {
    return bits ^ ((bits >> 31) & INT32_MAX);
}
SDFEEL_INLINE Whole turned(Whole bits) {
    return bits ^ ((bits >> 63) & INT64_MAX);
}

template <class T, int N> SDFEEL_INLINE void sort(Some<T, N> *keys, const Pairs &pairs) {
    for (int i = 0; i < pairs.count; i++) {
        const Some<T, N> a = keys[pairs.low[i]], b = keys[pairs.high[i]];
        keys[pairs.low[i]] = a < b ? a : b;
        keys[pairs.high[i]] = a < b ? b : a;
    }
}

} // namespace sdfeel
