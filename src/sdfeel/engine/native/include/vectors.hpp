// Short vectors of floats, by the compiler's vector extensions: any CPU.
//
// The same bits on every CPU. Numbers come out the same wherever the same operations are done in
// the same order, each rounded as IEEE 754 says. So
//   - no compiler may contract or reorder (see build.py); a product that is added to something is
//     `fused`, everywhere, and nothing else is;
//   - a sum that runs across lanes has ORDER of them, however many the CPU has (LANES), and ends in
//     one tree; all other sums are chains, in the order that the stage says;
//   - tiles, parts and blocks choose what is computed together, never what is added to what.
#pragma once

#include <stdint.h>
#include <string.h>

#include "std_substitutes.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#define SDFEEL_INLINE inline __attribute__((always_inline))
#define SDFEEL_NOINLINE __attribute__((noinline))
#define SDFEEL_UNROLL _Pragma("GCC unroll 64")

namespace sdfeel {

// LANES: floats in the CPU's widest register. REGISTERS: how many of those it has.
#if defined(SDFEEL_LANES) // by a test: a width and a number that the CPU need not have
constexpr int LANES = SDFEEL_LANES, REGISTERS = SDFEEL_REGISTERS;
#elif defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4, REGISTERS = 32;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif
// How many sums a kernel may keep in registers, leaving some for its operands.
constexpr int ACCUMULATORS = REGISTERS == 32 ? 26 : 12;

// What build.py knows about this CPU, so that tiles suit it. WHOLE: vectors of 512 bits are loaded,
// stored and multiplied at once, not in halves. FIRST_CACHE: bytes in the cache of the first level.
#if defined(SDFEEL_WHOLE)
constexpr bool WHOLE = LANES == 16;
#else
constexpr bool WHOLE = false;
#endif
#if !defined(SDFEEL_FIRST_CACHE)
#define SDFEEL_FIRST_CACHE 32768
#endif
constexpr int FIRST_CACHE = SDFEEL_FIRST_CACHE;

// ORDER: lanes of a sum that runs across lanes, on every CPU. PARTS: how many vectors they fill
// here.
#if !defined(SDFEEL_ORDER) // by a test: another order has other bits
#define SDFEEL_ORDER 16
#endif
constexpr int ORDER = SDFEEL_ORDER, PARTS = ORDER / LANES;
static_assert(PARTS * LANES == ORDER, "an order is made of whole vectors");

// Whether the CPU multiplies and adds in one step. A CPU that does not computes other bits.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__FP_FAST_FMAF)
constexpr bool FUSES = true;
#else
constexpr bool FUSES = false;
#endif

template <int N> struct Types {
    typedef float floats __attribute__((vector_size(N * 4)));
    typedef float loose __attribute__((vector_size(N * 4), aligned(4), may_alias));
    typedef int32_t ints __attribute__((vector_size(N * 4)));
    typedef int32_t loose_ints __attribute__((vector_size(N * 4), aligned(4), may_alias));
    typedef uint8_t bytes __attribute__((vector_size(N)));
    typedef uint8_t loose_bytes __attribute__((vector_size(N), aligned(1), may_alias));
};
template <int N> using Floats = typename Types<N>::floats;
template <int N> using Ints = typename Types<N>::ints;

template <int N> SDFEEL_INLINE Floats<N> load(const float *from) {
    return *reinterpret_cast<const typename Types<N>::loose *>(from);
}
// The same for a vector that is used several times: otherwise GCC would load it again for each use.
template <int N> SDFEEL_INLINE Floats<N> load_once(const float *from) {
    return *reinterpret_cast<const volatile typename Types<N>::loose *>(from);
}
template <int N> SDFEEL_INLINE void store(float *to, Floats<N> values) {
    *reinterpret_cast<typename Types<N>::loose *>(to) = values;
}

// N bytes as numbers. GCC 12 on its own would convert them one by one.
template <int N> SDFEEL_INLINE Ints<N> widened(const uint8_t *from) {
#if defined(__AVX2__) && !defined(__clang__)
    typedef char Sixteen __attribute__((vector_size(16)));
#if defined(__AVX512F__)
    if constexpr (N == 16) {
        Sixteen bytes;
        memcpy(&bytes, from, N);
        return __builtin_ia32_pmovzxbd512_mask(bytes, Ints<N>{}, (unsigned short)-1);
    }
#endif
    if constexpr (N == 8) {
        typedef long long Two __attribute__((vector_size(16)));
        long long eight;
        memcpy(&eight, from, N);
        return __builtin_ia32_pmovzxbd256((Sixteen)Two{eight, 0});
    }
#endif
    return __builtin_convertvector(
        *reinterpret_cast<const typename Types<N>::loose_bytes *>(from), Ints<N>);
}

// N small numbers to bytes.
template <int N> SDFEEL_INLINE void store_narrowed(uint8_t *to, Ints<N> values) {
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__clang__)
    if constexpr (N == 8) {
        typedef short Words __attribute__((vector_size(16)));
        typedef long long Two __attribute__((vector_size(16)));
        const Words words =
            __builtin_ia32_packssdw128(__builtin_shufflevector(values, values, 0, 1, 2, 3),
                                       __builtin_shufflevector(values, values, 4, 5, 6, 7));
        const long long bytes = ((Two)__builtin_ia32_packuswb128(words, words))[0];
        memcpy(to, &bytes, N);
        return;
    }
#endif
    *reinterpret_cast<typename Types<N>::loose_bytes *>(to) =
        __builtin_convertvector(values, typename Types<N>::bytes);
}

// Store the first COUNT lanes alone.
template <int COUNT, int N, int... I>
SDFEEL_INLINE void store_first(float *to, Floats<N> values, Indices<I...>) {
    constexpr int H = N / 2;
    if constexpr (COUNT == N) store<N>(to, values);
    else if constexpr (N <= 4)
        SDFEEL_UNROLL for (int i = 0; i < COUNT; i++) to[i] = values[i];
    else {
        const Floats<H> low = __builtin_shufflevector(values, values, I...);
        if constexpr (COUNT <= H) store_first<COUNT, H>(to, low, To<H / 2>());
        else {
            store<H>(to, low);
            store_first<COUNT - H, H>(
                to + H, __builtin_shufflevector(values, values, (I + H)...), To<H / 2>());
        }
    }
}
template <int COUNT, int N> SDFEEL_INLINE void store_first(float *to, Floats<N> values) {
    store_first<COUNT, N>(to, values, To<N / 2>());
}

template <int N, int... I>
SDFEEL_INLINE Floats<N> spread(float x, Indices<I...>) {
    return Floats<N>{((void)I, x)...};
}
// `x` in every lane. Spelled as a list of N values: a loop would not become one instruction.
template <int N> SDFEEL_INLINE Floats<N> all(float x) {
    return spread<N>(x, To<N>());
}

template <int LANE, int N, int... I>
SDFEEL_INLINE Floats<N> spread_lane(Floats<4> v, Indices<I...>) {
    return __builtin_shufflevector(v, v, ((void)I, LANE)...);
}
// One lane of four in every lane of N.
template <int LANE, int N> SDFEEL_INLINE Floats<N> lane(Floats<4> v) {
    return spread_lane<LANE, N>(v, To<N>());
}

template <int N, int... I>
SDFEEL_INLINE Floats<N> every_second(Floats<N> a, Floats<N> b, Indices<I...>) {
    return __builtin_shufflevector(a, b, (2 * I)...);
}
template <int N, int... I>
SDFEEL_INLINE Floats<N> every_other(Floats<N> a, Floats<N> b, Indices<I...>) {
    return __builtin_shufflevector(a, b, (2 * I + 1)...);
}
// Lanes 0, 2, 4, ... of a and b together.
template <int N> SDFEEL_INLINE Floats<N> even(Floats<N> a, Floats<N> b) {
    return every_second<N>(a, b, To<N>());
}
// Lanes 1, 3, 5, ... of a and b together.
template <int N> SDFEEL_INLINE Floats<N> odd(Floats<N> a, Floats<N> b) {
    return every_other<N>(a, b, To<N>());
}

template <int N, int... I>
SDFEEL_INLINE void zipped(float *to, Floats<N> a, Floats<N> b, Indices<I...>) {
    store<N>(to, __builtin_shufflevector(a, b, (I % 2 * N + I / 2)...));
    store<N>(to + N, __builtin_shufflevector(a, b, (I % 2 * N + I / 2 + N / 2)...));
}
// Store a[0], b[0], a[1], b[1], ...
template <int N> SDFEEL_INLINE void zip(float *to, Floats<N> a, Floats<N> b) {
    zipped<N>(to, a, b, To<N>());
}

// a * b + c, rounded once.
SDFEEL_INLINE float fused(float a, float b, float c) {
    return FUSES ? __builtin_fmaf(a, b, c) : a * b + c;
}
SDFEEL_INLINE double fused(double a, double b, double c) {
    return FUSES ? __builtin_fma(a, b, c) : a * b + c;
}
template <int N, int... I>
SDFEEL_INLINE Floats<N> by_lanes(Floats<N> a, Floats<N> b, Floats<N> c, Indices<I...>) {
    return Floats<N>{fused(a[I], b[I], c[I])...};
}
template <int N, int... I>
SDFEEL_INLINE Floats<N> by_halves(Floats<N> a, Floats<N> b, Floats<N> c, Indices<I...>);

template <int N> SDFEEL_INLINE Floats<N> fused(Floats<N> a, Floats<N> b, Floats<N> c) {
    if constexpr (N == 1) return by_lanes<N>(a, b, c, To<N>());
    else if constexpr (!FUSES) return a * b + c;
#if defined(__has_builtin) && __has_builtin(__builtin_elementwise_fma)
    else return __builtin_elementwise_fma(a, b, c);
#elif defined(__FMA__)
    // The header of the intrinsics would take as long to compile as all of the rest.
    else if constexpr (N == 4) return __builtin_ia32_vfmaddps(a, b, c);
    else if constexpr (N == 8) return __builtin_ia32_vfmaddps256(a, b, c);
#if defined(__AVX512F__)
    else return __builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4);
#else
    else return by_halves<N>(a, b, c, To<N / 2>());
#endif
#elif defined(__aarch64__)
    else if constexpr (N == 4)
        return (Floats<N>)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
    else return by_halves<N>(a, b, c, To<N / 2>());
#else // among them 32-bit ARM, whose vectors take the smallest numbers for zero
    else return by_lanes<N>(a, b, c, To<N>());
#endif
}
// A vector that is wider than the CPU's.
template <int N, int... I>
SDFEEL_INLINE Floats<N> by_halves(Floats<N> a, Floats<N> b, Floats<N> c, Indices<I...>) {
    constexpr int H = N / 2;
    const Floats<H> low = fused<H>(__builtin_shufflevector(a, a, I...),
                                   __builtin_shufflevector(b, b, I...),
                                   __builtin_shufflevector(c, c, I...));
    const Floats<H> high = fused<H>(__builtin_shufflevector(a, a, (I + H)...),
                                    __builtin_shufflevector(b, b, (I + H)...),
                                    __builtin_shufflevector(c, c, (I + H)...));
    return __builtin_shufflevector(low, high, I..., (I + H)...);
}

template <int N, int... I> SDFEEL_INLINE Floats<N> roots(Floats<N> v, Indices<I...>) {
    return Floats<N>{__builtin_sqrtf(v[I])...};
}
// The square root of each lane, rounded once.
template <int N> SDFEEL_INLINE Floats<N> root(Floats<N> v) {
#if defined(__AVX512F__) && !defined(__clang__)
    if constexpr (N == 16)
        return __builtin_ia32_sqrtps512_mask(v, v, (unsigned short)-1, 4);
#endif
#if defined(__AVX__) && !defined(__clang__)
    if constexpr (N == 8) return __builtin_ia32_sqrtps256(v);
#endif
    return roots<N>(v, To<N>()); // some compilers make one instruction of it
}

// The sum of all lanes, always in the same tree.
SDFEEL_INLINE float sum(Floats<4> v) { return (v[0] + v[2]) + (v[1] + v[3]); }
SDFEEL_INLINE float sum(Floats<8> v) {
    return sum(__builtin_shufflevector(v, v, 0, 1, 2, 3) +
               __builtin_shufflevector(v, v, 4, 5, 6, 7));
}
SDFEEL_INLINE float sum(Floats<16> v) {
    return sum(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
               __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
}

// The sum of ORDER lanes, in the same tree.
SDFEEL_INLINE float sum(const Floats<LANES> (&parts)[PARTS]) {
    if constexpr (PARTS == 4) return sum((parts[0] + parts[2]) + (parts[1] + parts[3]));
    else if constexpr (PARTS == 2) return sum(parts[0] + parts[1]);
    else return sum(parts[0]);
}

constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }
constexpr int round_up(int a, int b) { return divide_up(a, b) * b; }
constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int most(int a, int b) { return a > b ? a : b; }

// act(lanes, i) over `COUNT` neighbours: whole vectors as long as there are any, then one by one.
template <int COUNT, class Act> SDFEEL_INLINE void in_vectors(const Act &act) {
    int i = 0;
    for (; i + LANES <= COUNT; i += LANES) act(Number<LANES>(), i);
    for (; i < COUNT; i++) act(Number<1>(), i);
}

// The vector length for `count` neighbouring floats: not wider than they need.
constexpr int fitting(int count) {
    return count <= 4 ? 4 : count <= 8 ? least(8, LANES) : LANES;
}

} // namespace sdfeel
