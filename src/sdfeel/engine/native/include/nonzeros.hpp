// Picking the numbers that matter out of many, and packing them without gaps.
#pragma once

#include "vectors.hpp"

namespace sdfeel {

// For each choice among eight numbers: the places of the chosen ones, which are to move to the
// front.
struct ToFront {
    uint8_t places[256][8];
    constexpr ToFront() : places() {
        for (int chosen = 0; chosen < 256; chosen++)
            for (int i = 0, to = 0; i < 8; i++)
                if (chosen >> i & 1) places[chosen][to++] = uint8_t(i);
    }
};

// Write the places and changes of those that are `alive` one after the other, and return how many
// there are; what lies behind them may be overwritten. There is no branch, because a CPU cannot
// guess whether a ReLU is alive.
template <int N>
SDFEEL_INLINE int append(int32_t *places, float *changes, Ints<N> place, Floats<N> change,
                         Ints<N> alive) {
#if defined(__AVX512F__) && !defined(__clang__)
    if constexpr (N == 16) { // in registers: compressing to memory is slow
        const unsigned short mask = __builtin_ia32_ptestmd512(alive, alive, (unsigned short)-1);
        store<N>(reinterpret_cast<float *>(places),
                 (Floats<N>)__builtin_ia32_compresssi512_mask(place, Ints<N>{}, mask));
        store<N>(changes, __builtin_ia32_compresssf512_mask(change, Floats<N>{}, mask));
        return __builtin_popcount(mask);
    }
#elif defined(__AVX2__) && !defined(__clang__)
    if constexpr (N == 8) {
        static constexpr ToFront to_front{};
        const int mask = __builtin_ia32_movmskps256((Floats<N>)alive);
        const Ints<N> order = widened<N>(to_front.places[mask]);
        store<N>(reinterpret_cast<float *>(places),
                 (Floats<N>)__builtin_ia32_permvarsi256(place, order));
        store<N>(changes, __builtin_ia32_permvarsf256(change, order));
        return __builtin_popcount(unsigned(mask));
    }
#endif
    int count = 0;
    SDFEEL_UNROLL for (int i = 0; i < N; i++) {
        places[count] = place[i];
        changes[count] = change[i];
        count -= alive[i];
    }
    return count;
}

template <int... I> SDFEEL_INLINE Ints<sizeof...(I)> counted(Indices<I...>) {
    return Ints<sizeof...(I)>{I...};
}

// The numbers among COUNT that are not zero, and their places.
template <int COUNT> struct NotZero {
    static constexpr int ROOM = round_up(COUNT, LANES);
    int count;
    int32_t places[ROOM];
    float values[ROOM];

    // Behind `numbers` there are zeros, up to a whole vector.
    SDFEEL_INLINE void find(const float *numbers) {
        count = 0;
        for (int i = 0; i < COUNT; i += LANES) {
            const Floats<LANES> some = load<LANES>(numbers + i);
            count += append<LANES>(places + count, values + count, counted(To<LANES>()) + i, some,
                                   some != Floats<LANES>{});
        }
    }
};

} // namespace sdfeel
