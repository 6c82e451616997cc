// Transposing a matrix, 4 x 4 numbers at a time: two shuffles for four numbers, where one by one
// each would cost a cache miss.
#pragma once

#include "vectors.hpp"

namespace sdfeel {

// A block of up to 4 x 4. What lies next to it is neither read nor written, unless it SPILLS: then
// zeros are written behind short rows of `to`.
template <int ROWS = 4, int COLUMNS = 4, bool SPILLS = false, class T>
SDFEEL_INLINE void transpose_four(const T *from, int from_stride, T *to, int to_stride) {
    typedef T Four __attribute__((vector_size(4 * sizeof(T))));
    typedef T Loose __attribute__((vector_size(4 * sizeof(T)), aligned(alignof(T)), may_alias));
    const auto row = [&](int r) -> Four {
        const T *const first = from + r * from_stride;
        if (r >= ROWS) return Four{};
        if constexpr (COLUMNS == 4) return *reinterpret_cast<const Loose *>(first);
        return Four{first[0], COLUMNS > 1 ? first[1] : 0, COLUMNS > 2 ? first[2] : 0, 0};
    };
    const auto put = [&](int r, Four values) {
        T *const first = to + r * to_stride;
        if (r >= COLUMNS) return;
        if constexpr (ROWS == 4 || SPILLS) *reinterpret_cast<Loose *>(first) = values;
        else
            SDFEEL_UNROLL for (int i = 0; i < ROWS; i++) first[i] = values[i];
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
    // The lines come from many places at once, which no CPU guesses: so they are prefetched.
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

// The same for a small one, whose size is known when it is compiled. SPILLS: up to three numbers
// behind a row of `to` may be overwritten before the next row is written.
template <int ROWS, int COLUMNS, bool SPILLS = false>
SDFEEL_INLINE void turn(const float *from, int from_stride, float *to, int to_stride) {
    constexpr int LAST_ROWS = ROWS % 4, LAST_COLUMNS = COLUMNS % 4;
    int c = 0;
    const auto column = [&](auto columns) {
        constexpr int WIDE = decltype(columns)::value;
        int r = 0;
        for (; r + 4 <= ROWS; r += 4)
            transpose_four<4, WIDE>(from + r * from_stride + c, from_stride, to + c * to_stride + r,
                                    to_stride);
        if constexpr (LAST_ROWS)
            transpose_four<LAST_ROWS, WIDE, SPILLS>(from + r * from_stride + c, from_stride,
                                                    to + c * to_stride + r, to_stride);
    };
    for (; c + 4 <= COLUMNS; c += 4) column(Number<4>());
    if constexpr (LAST_COLUMNS) column(Number<LAST_COLUMNS>());
}

} // namespace sdfeel
