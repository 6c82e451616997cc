// Short vectors of floats, by the compiler's vector extensions: no intrinsics, any CPU.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#define SDFEEL_INLINE inline __attribute__((always_inline))
#define SDFEEL_NOINLINE __attribute__((noinline))
#define SDFEEL_UNROLL _Pragma("GCC unroll 64")

namespace sdfeel {

// LANES: floats in the CPU's widest register. REGISTERS: how many of those it has.
#if defined(SDFEEL_WIDEST) // by a test: a width that the CPU need not have
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__ARM_NEON)
constexpr int LANES = 4, REGISTERS = 32;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif
// How many sums a kernel may keep in registers, leaving some for its operands.
constexpr int ACCUMULATORS = REGISTERS == 32 ? 26 : 12;

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
template <int N> SDFEEL_INLINE void store(float *to, Floats<N> values) {
    *reinterpret_cast<typename Types<N>::loose *>(to) = values;
}

template <int N, int... I>
SDFEEL_INLINE Floats<N> spread(float x, std::integer_sequence<int, I...>) {
    return Floats<N>{((void)I, x)...};
}
// `x` in every lane. Spelled as a list of N values: a loop would not become one instruction.
template <int N> SDFEEL_INLINE Floats<N> all(float x) {
    return spread<N>(x, std::make_integer_sequence<int, N>());
}

template <int N, int... I>
SDFEEL_INLINE Floats<N> every_second(Floats<N> a, Floats<N> b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, (2 * I)...);
}
template <int N, int... I>
SDFEEL_INLINE Floats<N> every_other(Floats<N> a, Floats<N> b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, (2 * I + 1)...);
}
// Lanes 0, 2, 4, ... of a and b together.
template <int N> SDFEEL_INLINE Floats<N> even(Floats<N> a, Floats<N> b) {
    return every_second<N>(a, b, std::make_integer_sequence<int, N>());
}
// Lanes 1, 3, 5, ... of a and b together.
template <int N> SDFEEL_INLINE Floats<N> odd(Floats<N> a, Floats<N> b) {
    return every_other<N>(a, b, std::make_integer_sequence<int, N>());
}

template <int N, int... I>
SDFEEL_INLINE void zipped(float *to, Floats<N> a, Floats<N> b, std::integer_sequence<int, I...>) {
    store<N>(to, __builtin_shufflevector(a, b, (I % 2 * N + I / 2)...));
    store<N>(to + N, __builtin_shufflevector(a, b, (I % 2 * N + I / 2 + N / 2)...));
}
// Store a[0], b[0], a[1], b[1], ...
template <int N> SDFEEL_INLINE void zip(float *to, Floats<N> a, Floats<N> b) {
    zipped<N>(to, a, b, std::make_integer_sequence<int, N>());
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

constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }
constexpr int round_up(int a, int b) { return divide_up(a, b) * b; }
constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int most(int a, int b) { return a > b ? a : b; }

// The vector length for `count` neighbouring floats: not wider than they need.
constexpr int fitting(int count) {
    return count <= 4 ? 4 : count <= 8 ? least(8, LANES) : LANES;
}

} // namespace sdfeel
