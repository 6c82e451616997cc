// Turning a matrix: what costs a shuffle or two for four numbers costs a cache miss for one.
#pragma once

#include "vectors.hpp"

namespace sdfeel {

// A block of 4 x 4.
template <class T>
SDFEEL_INLINE void transpose_four(const T *from, int from_stride, T *to, int to_stride) {
    typedef T Four __attribute__((vector_size(4 * sizeof(T))));
    typedef T Loose __attribute__((vector_size(4 * sizeof(T)), aligned(alignof(T)), may_alias));
    const auto row = [&](int r) -> Four {
        return *reinterpret_cast<const Loose *>(from + r * from_stride);
    };
    const auto put = [&](int r, Four values) {
        *reinterpret_cast<Loose *>(to + r * to_stride) = values;
    };
    const Four a = row(0), b = row(1), c = row(2), d = row(3);
    const Four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const Four cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const Four ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const Four cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    put(0, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
    put(1, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
    put(2, __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5));
    put(3, __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7));
}

// to[c][r] = from[r][c] for a matrix of rows x columns.
//
// One side is far away in memory, and is walked through line by line: DISTANT_FROM takes bands of
// its rows together, otherwise bands of the rows of `to`.
template <bool DISTANT_FROM, class T>
inline void transpose(const T *from, int from_stride, T *to, int to_stride, int rows,
                      int columns) {
    const int whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
    const auto four = [&](int r, int c) {
        transpose_four(from + long(r) * from_stride + c, from_stride, to + long(c) * to_stride + r,
                       to_stride);
    };
    // The lines come from many places at once: no CPU guesses that, so they are asked for.
    constexpr int LINE = 64 / sizeof(T), AHEAD = 2 * LINE;
    if (DISTANT_FROM) {
        constexpr int BAND = 32;
        for (int band = 0; band < whole_rows; band += BAND) {
            const int end = least(whole_rows, band + BAND);
            for (int c = 0; c < whole_columns; c += 4) {
                if (c % LINE == 0)
                    for (int r = band; r < end; r++)
                        __builtin_prefetch(from + long(r) * from_stride + c + AHEAD);
                for (int r = band; r < end; r += 4) four(r, c);
            }
        }
    } else {
        constexpr int BAND = LINE;
        for (int band = 0; band < whole_columns; band += BAND) {
            const int end = least(whole_columns, band + BAND);
            for (int r = 0; r < whole_rows; r += 4) {
                if (r % LINE == 0)
                    for (int c = band; c < end; c++)
                        __builtin_prefetch(to + long(c) * to_stride + r + AHEAD, 1);
                for (int c = band; c < end; c += 4) four(r, c);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = r < whole_rows ? whole_columns : 0; c < columns; c++)
            to[long(c) * to_stride + r] = from[long(r) * from_stride + c];
}

} // namespace sdfeel
