// 2x2 max-pooling and ReLU after a convolution, and which outputs get a gradient.
//
// Only the largest of each window, and only if ReLU lets it through, has a gradient. The backward
// pass follows these winners alone: with pooling there are four times fewer than positions.
#pragma once

#include "conv_shape.hpp"
#include "nonzeros.hpp"

namespace sdfeel {

constexpr int DEAD = 4; // code of an output that ReLU stopped; else the winner's place, 0 to 3

// The winners of one output channel of one sample.
template <class Shape> struct Winners {
    static constexpr int ROOM = round_up(Shape::FINAL + 4, 16); // the kernels take up to 4 at once
    int count;
    int32_t places[ROOM]; // of the first input under the kernel: Shape::place
    float changes[ROOM];  // their gradients
};

template <class L> struct Pooling {
    using Shape = ConvShape<L>;
    static constexpr int OUT_W = Shape::OUT_W, FINAL_W = Shape::FINAL_W, FINAL = Shape::FINAL;
    static constexpr int CODES = round_up(FINAL + 2 * ORDER, 16);
    static constexpr int SIZE = fitting(FINAL_W); // lanes

    // From a line of outputs to the final values, `row` floats apart, and their codes.
    template <bool TRAIN>
    static SDFEEL_INLINE void finish(const float *line, float scale, float *to, int row,
                                     uint8_t *codes) {
        for (int y = 0; y < Shape::FINAL_H; y++)
            for (int x = 0; x < FINAL_W; x += SIZE) {
                Ints<SIZE> code = {};
                Floats<SIZE> best = largest(line, y, x, code) * all<SIZE>(scale);
                if (L::relu) {
                    const Ints<SIZE> dead = best <= Floats<SIZE>{}; // a NaN passes
                    best = dead ? Floats<SIZE>{} : best;
                    code = dead ? Ints<SIZE>{} + DEAD : code;
                }
                if (FINAL_W % SIZE == 0 || x + SIZE <= FINAL_W) store<SIZE>(to + y * row + x, best);
                else store_first<FINAL_W % SIZE, SIZE>(to + y * row + x, best);
                if (TRAIN) // the next row overwrites what is too much
                    store_narrowed<SIZE>(codes + y * FINAL_W + x, code);
            }
    }

    // The list of winners from the gradients of the final values; returns the sum of all changes.
    static SDFEEL_INLINE float list(const float *gradients, float scale, const uint8_t *codes,
                                    Winners<Shape> &out) {
        Floats<LANES> totals[PARTS] = {};
        int count = 0;
        for (int p = 0; p < FINAL; p += ORDER) {
            SDFEEL_UNROLL for (int part = 0; part < PARTS; part++)
                if (part == 0 || p + part * LANES < FINAL)
                    totals[part] += take(gradients, scale, codes, p + part * LANES, out, count);
        }
        out.count = count;
        memset(out.places + count, 0, 4 * sizeof(int32_t));
        memset(out.changes + count, 0, 4 * sizeof(float));
        return sum(totals);
    }

  private:
    // The changes of LANES final values from p on; the winners among them are appended.
    static SDFEEL_INLINE Floats<LANES> take(const float *gradients, float scale,
                                            const uint8_t *codes, int p, Winners<Shape> &out,
                                            int &count) {
        const Ints<LANES> code = widened<LANES>(codes + p);
        Ints<LANES> place =
            *reinterpret_cast<const typename Types<LANES>::loose_ints *>(corners.places + p);
        if (L::pool)
            place += ((code & 1) ? Ints<LANES>{} + L::stride_x : Ints<LANES>{}) +
                     ((code & 2) ? Ints<LANES>{} + L::stride_y * Shape::ROW : Ints<LANES>{});
        Floats<LANES> change = load<LANES>(gradients + p) * all<LANES>(scale);
        Ints<LANES> alive = code != DEAD;
        if (FINAL % LANES && p + LANES > FINAL) alive &= lanes_before<FINAL % LANES>(To<LANES>());
        change = alive ? change : Floats<LANES>{};
        count += append<LANES>(out.places + count, out.changes + count, place, change, alive);
        return change;
    }
    template <int COUNT, int... I> static SDFEEL_INLINE Ints<LANES> lanes_before(Indices<I...>) {
        return Ints<LANES>{-(I < COUNT)...};
    }

    // The place in the padded input of each final value's first window corner.
    struct Corners {
        alignas(64) int32_t places[round_up(FINAL, LANES)];
        constexpr Corners() : places() {
            const int step = L::pool ? 2 : 1;
            for (int p = 0; p < FINAL; p++)
                places[p] = Shape::place(step * (p / FINAL_W) * L::stride_y,
                                         step * (p % FINAL_W) * L::stride_x);
        }
    };
    static constexpr Corners corners{};

    // SIZE final values of row y from x on; of equal ones the first counts, as in torch.
    static SDFEEL_INLINE Floats<SIZE> largest(const float *line, int y, int x, Ints<SIZE> &code) {
        if constexpr (!L::pool) return load<SIZE>(line + y * OUT_W + x);
        const float *upper = line + 2 * y * OUT_W + 2 * x, *lower = upper + OUT_W;
        const Floats<SIZE> u0 = load<SIZE>(upper), u1 = load<SIZE>(upper + SIZE);
        const Floats<SIZE> l0 = load<SIZE>(lower), l1 = load<SIZE>(lower + SIZE);
        Floats<SIZE> best = even<SIZE>(u0, u1);
        challenge(best, code, odd<SIZE>(u0, u1), 1);
        challenge(best, code, even<SIZE>(l0, l1), 2);
        challenge(best, code, odd<SIZE>(l0, l1), 3);
        return best;
    }
    static SDFEEL_INLINE void challenge(Floats<SIZE> &best, Ints<SIZE> &code, Floats<SIZE> other,
                                        int place) {
        const Ints<SIZE> wins = other > best;
        best = wins ? other : best;
        code = wins ? Ints<SIZE>{} + place : code;
    }
};

} // namespace sdfeel
