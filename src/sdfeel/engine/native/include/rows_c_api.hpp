// The plain C functions that rows.py calls. They work on whole rows: models in float32.
#pragma once

#include "weighted_sums.hpp"
#include "rows.hpp"

namespace sdfeel {

// N numbers of a row; if only `count` are left in it, zeros follow them.
template <class T, int N> SDFEEL_INLINE Some<T, N> few(const T *from, int count) {
    if (count >= N) return some<T, N>(from);
    T padded[N] = {};
    memcpy(padded, from, size_t(count) * sizeof(T));
    return some<T, N>(padded);
}
template <class T, int N> SDFEEL_INLINE void put_few(T *to, Some<T, N> values, int count) {
    if (count >= N) return put<T, N>(to, values);
    T padded[N];
    put<T, N>(padded, values);
    memcpy(to, padded, size_t(count) * sizeof(T));
}

inline void minus(const float *a, const float *b, float *out, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store<LANES>(out + i, load<LANES>(a + i) - load<LANES>(b + i));
    for (; i < count; i++) out[i] = a[i] - b[i];
}

// Scale a row down to `norm` if it is longer.
inline void clip(float *row, int64_t count, double norm) {
    const auto eight = [=](int64_t i) { return doubles(row + i) * doubles(row + i); };
    const auto one = [=](int64_t i) { return double(row[i]) * double(row[i]); };
    const double length = __builtin_sqrt(pairwise(eight, one, 0, count));
    if (length <= norm) return;
    const double factor = norm / length;
    int64_t i = 0;
    for (; i + EIGHT <= count; i += EIGHT) put_singles(row + i, doubles(row + i) * factor);
    for (; i < count; i++) row[i] = float(double(row[i]) * factor);
}

inline void add_noise(const Ziggurat &normal, Pcg64 &from, float *row, int64_t count,
                      double deviation) {
    constexpr int BLOCK = 256;
    double drawn[BLOCK];
    for (int64_t begin = 0; begin < count; begin += BLOCK, row += BLOCK) {
        const int here = int(count - begin < BLOCK ? count - begin : BLOCK);
        normal.draw(from, drawn, here);
        int i = 0;
        for (; i + EIGHT <= here; i += EIGHT)
            put_singles(row + i, doubles(row + i) + deviation * some<double, EIGHT>(drawn + i));
        for (; i < here; i++) row[i] = float(double(row[i]) + deviation * drawn[i]);
    }
}

// Eight columns of numbers in ascending order, and the shares that belong to them.
struct Ranks {
    Doubles values[MOST_ROWS], shares[MOST_ROWS];
};

// Calls take(column, count, ranks) for (rows, columns) numbers, up to eight columns at a time.
// Equal numbers stay in the order of their rows, unless all shares are `equal`: then it is all the
// same.
template <class Take>
void in_order(const float *x, int rows, int64_t columns, const double *share, bool equal,
              const Take &take) {
    const Pairs pairs(rows);
    Ranks ranks;
    if (equal) {
        Some<int32_t, 16> keys[MOST_ROWS];
        const auto *bits = reinterpret_cast<const int32_t *>(x);
        for (int n = 0; n < rows; n++) ranks.shares[n] = all_eight(share[n]);
        for (int64_t p = 0; p < columns; p += 16) {
            const int count = int(columns - p < 16 ? columns - p : 16);
            for (int n = 0; n < rows; n++)
                keys[n] = turned(few<int32_t, 16>(bits + n * columns + p, count));
            sort<int32_t, 16>(keys, pairs);
            for (int n = 0; n < rows; n++) keys[n] = turned(keys[n]);
            for (int half = 0; half < count; half += EIGHT) {
                for (int n = 0; n < rows; n++)
                    ranks.values[n] = doubles(reinterpret_cast<const float *>(keys + n) + half);
                take(p + half, least(EIGHT, count - half), ranks);
            }
        }
        return;
    }
    constexpr int64_t PLACES = MOST_ROWS - 1; // a widened float32 leaves 29 bits free
    Whole keys[MOST_ROWS];
    for (int64_t p = 0; p < columns; p += EIGHT) {
        const int count = int(columns - p < EIGHT ? columns - p : EIGHT);
        for (int n = 0; n < rows; n++) {
            const auto row = few<float, EIGHT>(x + n * columns + p, count);
            const Doubles wide = __builtin_convertvector(row, Doubles) + 0.0; // no -0
            keys[n] = (turned((Whole)wide) & ~PLACES) | n;
        }
        sort<int64_t, EIGHT>(keys, pairs);
        for (int n = 0; n < rows; n++) {
            SDFEEL_UNROLL for (int i = 0; i < EIGHT; i++)
                ranks.shares[n][i] = share[keys[n][i] & PLACES];
            const Whole wide = turned(keys[n] & ~PLACES);
            // A negative number's free bits are ones.
            ranks.values[n] = (Doubles)(wide & ~((wide >> 63) & PLACES));
        }
        take(p, count, ranks);
    }
}

constexpr double TO_WHOLE = 0x1.8p52; // added and subtracted, it rounds to whole numbers

// Eight differences; what is beyond the end is 0.
SDFEEL_INLINE Doubles gaps(const float *x, const double *own, int count) {
    const auto row = few<float, EIGHT>(x, count);
    return __builtin_convertvector(row, Doubles) - few<double, EIGHT>(own, count);
}

// The products of rows i to i + TILE with rows j to j + TILE, and their mirror image.
constexpr int TILE = 4;
inline void multiply(const double *numbers, int64_t stride, int rows, int64_t columns, int i, int j,
                     double *products) {
    Doubles sums[TILE][TILE] = {};
    const double *left[TILE], *right[TILE];
    for (int k = 0; k < TILE; k++) {
        left[k] = numbers + least(i + k, rows - 1) * stride;
        right[k] = numbers + least(j + k, rows - 1) * stride;
    }
    for (int64_t p = 0; p < columns; p += EIGHT) {
        Doubles own[TILE];
        SDFEEL_UNROLL for (int k = 0; k < TILE; k++) own[k] = some<double, EIGHT>(left[k] + p);
        SDFEEL_UNROLL for (int m = 0; m < TILE; m++) {
            const Doubles other = some<double, EIGHT>(right[m] + p);
            SDFEEL_UNROLL for (int k = 0; k < TILE; k++) sums[k][m] += own[k] * other;
        }
    }
    for (int k = 0; k < TILE && i + k < rows; k++)
        for (int m = 0; m < TILE && j + m < rows; m++) {
            double sum = 0;
            for (int lane = 0; lane < EIGHT; lane++) sum += sums[k][m][lane];
            products[(i + k) * rows + j + m] = products[(j + m) * rows + i + k] = sum;
        }
}

} // namespace sdfeel

extern "C" {

int64_t sdfeel_ziggurat_bytes() { return int64_t(sizeof(sdfeel::Ziggurat)); }

void sdfeel_ziggurat(void *memory, void *numpy) {
    const sdfeel::Ziggurat made(reinterpret_cast<sdfeel::NumpyNormal>(numpy));
    memcpy(memory, &made, sizeof made);
}

// What a client sends: trained - start, scaled down to `norm` if it is longer, with noise from a
// generator that 256 bits have seeded. If the deviation is 0, there is no noise.
void sdfeel_guarded(const void *ziggurat, const float *start, const float *trained, float *out,
                    int64_t count, double norm, double deviation, const uint8_t *bits) {
    sdfeel::minus(trained, start, out, count);
    sdfeel::clip(out, count, norm);
    if (!deviation) return;
    sdfeel::Pcg64 from = sdfeel::seeded(bits);
    sdfeel::add_noise(*static_cast<const sdfeel::Ziggurat *>(ziggurat), from, out, count, deviation);
}

// (rows) the squared distance of each row from a centre.
void sdfeel_squares(const float *x, int64_t rows, int64_t count, const double *centre,
                    double *found) {
    using namespace sdfeel;
    for (int64_t n = 0; n < rows; n++) {
        const float *row = x + n * count;
        const auto eight = [=](int64_t i) {
            const Doubles gap = doubles(row + i) - some<double, EIGHT>(centre + i);
            return gap * gap;
        };
        const auto one = [=](int64_t i) {
            const double gap = double(row[i]) - centre[i];
            return gap * gap;
        };
        found[n] = pairwise(eight, one, 0, count);
    }
}

// (count) the sum of factor * row, in the order of the rows.
void sdfeel_summed(const float *x, int64_t rows, int64_t count, const double *factors,
                   double *total) {
    using namespace sdfeel;
    int64_t p = 0;
    constexpr int WIDE = 4; // vectors whose sums do not wait for one another
    for (; p + WIDE * EIGHT <= count; p += WIDE * EIGHT) {
        Doubles sums[WIDE] = {};
        for (int64_t n = 0; n < rows; n++)
            SDFEEL_UNROLL for (int i = 0; i < WIDE; i++)
                sums[i] += doubles(x + n * count + p + i * EIGHT) * factors[n];
        SDFEEL_UNROLL for (int i = 0; i < WIDE; i++) put<double, EIGHT>(total + p + i * EIGHT, sums[i]);
    }
    for (; p < count; p++) {
        double sum = 0;
        for (int64_t n = 0; n < rows; n++) sum += double(x[n * count + p]) * factors[n];
        total[p] = sum;
    }
}

bool sdfeel_rows_fuse() { return sdfeel::FUSES; }

// Mix models as servers do: row n becomes the sum of weight * term over its terms, which begin at
// starts[n]. Rows may be terms themselves: all terms are read before any row is written.
void sdfeel_mix(const float *const *terms, const double *weights, const int64_t *starts,
                float *const *rows, int64_t count, int64_t size) {
    constexpr int64_t ROOM = 1 << 12; // numbers that wait until all have been read
    float mixed[ROOM];
    const int64_t piece = count < ROOM ? ROOM / count : 1;
    for (int64_t begin = 0, here; begin < size; begin += here) {
        here = size - begin < piece ? size - begin : piece;
        for (int64_t n = 0, e = 0; n < count; n++, e = starts[n])
            sdfeel::sum_multiples(terms + e, weights + e, starts[n + 1] - e, begin, here,
                                  mixed + n * here);
        for (int64_t n = 0; n < count; n++)
            memcpy(rows[n] + begin, mixed + n * here, size_t(here) * sizeof(float));
    }
}

// (columns) the weighted median of each column: if two numbers have half of the votes each, their
// mean.
void sdfeel_median(const float *x, int rows, int64_t columns, const double *share, bool equal,
                   double nothing, double *out) {
    using namespace sdfeel;
    const Doubles below = all_eight(0.5 - nothing), upto = all_eight(0.5 + nothing);
    in_order(x, rows, columns, share, equal, [&](int64_t p, int count, const Ranks &ranks) {
        Doubles end = {}, low = {}, high = {};
        Whole had_low = {}, had_high = {};
        for (int n = 0; n < rows; n++) {
            end = n ? end + ranks.shares[n] : ranks.shares[n];
            const Whole is_low = ~(end < below) & ~had_low, is_high = ~(end <= upto) & ~had_high;
            low = is_low ? ranks.values[n] : low;
            high = is_high ? ranks.values[n] : high;
            had_low |= is_low;
            had_high |= is_high;
        }
        put_few<double, EIGHT>(out + p, (low + high) / 2.0, count);
    });
}

// (columns) the weighted mean of each column, without a share `trim` of the votes at either end.
void sdfeel_trimmed(const float *x, int rows, int64_t columns, const double *share, bool equal,
                    double nothing, double trim, double *out) {
    using namespace sdfeel;
    const Doubles first = all_eight(trim), last = all_eight(1 - trim), none = all_eight(nothing);
    in_order(x, rows, columns, share, equal, [&](int64_t p, int count, const Ranks &ranks) {
        Doubles end = {}, total = {}, weight = {};
        for (int n = 0; n < rows; n++) {
            end = n ? end + ranks.shares[n] : ranks.shares[n];
            const Doubles begin = end - ranks.shares[n];
            Doubles left = (end < last ? end : last) - (begin > first ? begin : first);
            left = left < none ? Doubles{} : left;
            total += left * ranks.values[n];
            weight += left;
        }
        put_few<double, EIGHT>(out + p, total / weight, count);
    });
}

// (rows) the largest |x - own| in each row; rows of `x` lie `stride` apart.
void sdfeel_most(const float *x, int64_t stride, int rows, int64_t columns, const double *own,
                 double *most) {
    using namespace sdfeel;
    for (int n = 0; n < rows; n++) {
        Doubles high = {};
        for (int64_t p = 0; p < columns; p += EIGHT) {
            const int here = int(columns - p < EIGHT ? columns - p : EIGHT);
            const Doubles gap = gaps(x + n * stride + p, own + p, here);
            const Doubles size = gap < -gap ? -gap : gap;
            high = size > high ? size : high;
        }
        most[n] = 0;
        for (int i = 0; i < EIGHT; i++) most[n] = high[i] > most[n] ? high[i] : most[n];
    }
}

// (rows, rows) the products of (x - own) * factor, rounded to whole numbers: sums of these are
// exact in any order. `room`: rows times (columns + 8) numbers.
void sdfeel_products(const float *x, int64_t stride, int rows, int64_t columns, const double *own,
                     const double *factors, double *room, double *products) {
    using namespace sdfeel;
    const int64_t wide = columns + EIGHT; // not a power of two, whose rows share places in a cache
    for (int n = 0; n < rows; n++)
        for (int64_t p = 0; p < columns; p += EIGHT) {
            const int here = int(columns - p < EIGHT ? columns - p : EIGHT);
            const Doubles gap = gaps(x + n * stride + p, own + p, here) * factors[n];
            put<double, EIGHT>(room + n * wide + p, (gap + TO_WHOLE) - TO_WHOLE);
        }
    for (int i = 0; i < rows; i += TILE)
        for (int j = i; j < rows; j += TILE) multiply(room, wide, rows, columns, i, j, products);
}

// (rows, columns) each row becomes the mean of `count` rows: of all but those that are `far` from
// it (rows, others). These are sums of whole numbers, too. But rows whose factor is 0 are not
// rounded: they are added as they are, wherever `near` (rows, rows) is not 0.
void sdfeel_met(const float *x, int64_t stride, int rows, int64_t columns, const double *own,
                const double *factors, const double *near, const int64_t *far, int64_t others,
                double unit, double count, float *out) {
    using namespace sdfeel;
    constexpr int WIDE = 2; // vectors that are worked on together
    Doubles gap[MOST_ROWS][WIDE], whole[MOST_ROWS][WIDE];
    int off[MOST_ROWS], many = 0; // rows that are not whole
    for (int n = 0; n < rows; n++)
        if (factors[n] == 0) off[many++] = n;
    for (int64_t p = 0; p < columns; p += WIDE * EIGHT) {
        Doubles all[WIDE] = {};
        int here[WIDE];
        SDFEEL_UNROLL for (int i = 0; i < WIDE; i++)
            here[i] = int(columns - p < i * EIGHT ? 0 : columns - p - i * EIGHT);
        for (int n = 0; n < rows; n++)
            SDFEEL_UNROLL for (int i = 0; i < WIDE; i++) {
                const int64_t q = p + i * EIGHT;
                gap[n][i] = gaps(x + n * stride + q, own + q, here[i]);
                whole[n][i] = (gap[n][i] * factors[n] + TO_WHOLE) - TO_WHOLE;
                all[i] += whole[n][i];
            }
        for (int n = 0; n < rows; n++) {
            Doubles sum[WIDE] = {all[0], all[1]};
            for (int64_t k = 0; k < others; k++)
                SDFEEL_UNROLL for (int i = 0; i < WIDE; i++) sum[i] -= whole[far[n * others + k]][i];
            SDFEEL_UNROLL for (int i = 0; i < WIDE; i++) {
                sum[i] *= unit;
                for (int u = 0; u < many; u++)
                    if (near[n * rows + off[u]]) sum[i] += gap[off[u]][i];
                const int64_t q = p + i * EIGHT;
                const Doubles mean = sum[i] / count + few<double, EIGHT>(own + q, here[i]);
                put_few<float, EIGHT>(out + n * stride + q,
                                      __builtin_convertvector(mean, Some<float, EIGHT>), here[i]);
            }
        }
    }
}
}
