// Convolution, backward: from lists of winners to the gradients of weights and inputs.
#pragma once

#include "winners.hpp"

namespace sdfeel {

// Weights' gradient: every winner adds (its gradient) x (the inputs under the kernel) to one of the
// chains of sums: the winners of a sample take turns, samples come one after the other.
template <class L> struct WeightGradient {
    using Shape = ConvShape<L>;
    using Tile = WeightTile<Shape>;
    static constexpr int BLOCK = Tile::BLOCK, BLOCKS = Tile::BLOCKS, ROW = Tile::ROW;
    static constexpr int COUNT = round_up(Shape::OUT * BLOCKS * Shape::KERNEL_Y * ROW, LANES);
    static constexpr int CHAINS = Tile::CHAINS;

    // Where the weight (o, c, y, x) lies among the COUNT numbers of this layout.
    static constexpr int place(int o, int c, int y, int x) {
        return ((o * BLOCKS + c / BLOCK) * Shape::KERNEL_Y + y) * ROW + x * BLOCK + c % BLOCK;
    }

    // Add to the CHAINS x COUNT sums what samples with these winners and inputs give. `inputs(s)`:
    // the padded input of a sample with BLOCK channels side by side, for channel block `b`.
    template <class Lists, class Inputs>
    static SDFEEL_NOINLINE void add(int b, int first, int last, const Lists &lists,
                                    const Inputs &inputs, float *changes) {
        for (int o = 0; o < Shape::OUT; o++)
            rows<0>(o, b, first, last, lists, inputs, changes);
    }

  private:
    template <int Y, class Lists, class Inputs>
    static SDFEEL_INLINE void rows(int o, int b, int first, int last, const Lists &lists,
                                   const Inputs &inputs, float *changes) {
        constexpr int ROWS = least(Tile::ROWS, Shape::KERNEL_Y - Y);
        constexpr int SIZE = Tile::SIZE, SUMS = ROWS * Tile::VECTORS;
        float *const to = changes + place(o, b * BLOCK, Y, 0);
        Floats<SIZE> sums[CHAINS][SUMS];
        SDFEEL_UNROLL for (int e = 0; e < CHAINS; e++)
            SDFEEL_UNROLL for (int i = 0; i < SUMS; i++)
                sums[e][i] = load<SIZE>(to + e * COUNT + i * SIZE);
        for (int s = first; s < last; s++) {
            const Winners<Shape> &winners = lists(s, o);
            const float *input = inputs(s) + Y * Shape::WIDTH * BLOCK;
            for (int i = 0; i < winners.count; i += CHAINS) {
                SDFEEL_UNROLL for (int e = 0; e < CHAINS; e++) {
                    const float *from = input + winners.list[i + e].place * BLOCK;
                    const Floats<SIZE> g = all<SIZE>(winners.list[i + e].change);
                    SDFEEL_UNROLL for (int y = 0; y < ROWS; y++) {
                        SDFEEL_UNROLL for (int j = 0; j < Tile::VECTORS; j++) {
                            Floats<SIZE> &sum = sums[e][y * Tile::VECTORS + j];
                            const float *at = from + y * Shape::WIDTH * BLOCK + j * SIZE;
                            sum = fused<SIZE>(g, load<SIZE>(at), sum);
                        }
                    }
                }
            }
        }
        SDFEEL_UNROLL for (int e = 0; e < CHAINS; e++)
            SDFEEL_UNROLL for (int i = 0; i < SUMS; i++)
                store<SIZE>(to + e * COUNT + i * SIZE, sums[e][i]);
        if constexpr (Y + ROWS < Shape::KERNEL_Y)
            rows<Y + ROWS>(o, b, first, last, lists, inputs, changes);
    }
};

// Inputs' gradient: every winner adds (its gradient) x (the kernel) to the inputs under it.
template <class L> struct InputGradient {
    using Shape = ConvShape<L>;
    using Tile = InputTile<Shape>;
    static constexpr int SLOTS = Tile::SLOTS, SIZE = Tile::SIZE, PLANE = L::height * L::width;

    alignas(64) float weights[Tile::BLOCKS][Shape::OUT][Shape::TAPS][SLOTS];
    alignas(64) float sums[Shape::AREA * SLOTS];           // channels side by side
    alignas(64) float planes[Shape::IN * PLANE + 2 * ORDER]; // without the border, one by one

    void pack(int o, int c, int tap, float weight) {
        weights[c / SLOTS][o][tap][c % SLOTS] = weight;
    }

    // The gradient of one sample's input, plane by plane.
    template <class Lists> SDFEEL_NOINLINE const float *of(const Lists &lists) {
        for (int b = 0; b < Tile::BLOCKS; b++) {
            memset(sums, 0, sizeof sums);
            for (int o = 0; o < Shape::OUT; o++) scatter(lists(o), weights[b][o][0]);
            if (b < Tile::BLOCKS - 1) unpack<SLOTS>(b);
            else unpack<Shape::IN - (Tile::BLOCKS - 1) * SLOTS>(b);
        }
        return planes;
    }

  private:
    SDFEEL_INLINE void scatter(const Winners<Shape> &winners, const float *w) {
        constexpr int COUNT = Shape::TAPS * Tile::VECTORS;
        constexpr int HELD = COUNT <= ACCUMULATORS ? COUNT : 0; // kernels small enough stay loaded
        Floats<SIZE> held[most(HELD, 1)];
        SDFEEL_UNROLL for (int i = 0; i < HELD; i++) held[i] = load<SIZE>(w + i * SIZE);
        for (int i = 0; i < winners.count; i++) {
            float *to = sums + winners.list[i].place * SLOTS;
            const Floats<SIZE> g = all<SIZE>(winners.list[i].change);
            SDFEEL_UNROLL for (int y = 0; y < Shape::KERNEL_Y; y++) {
                SDFEEL_UNROLL for (int j = 0; j < Shape::KERNEL_X * Tile::VECTORS; j++) {
                    const int k = y * Shape::KERNEL_X * Tile::VECTORS + j;
                    float *at = to + y * Shape::WIDTH * SLOTS + j * SIZE;
                    const Floats<SIZE> weight =
                        HELD ? held[HELD ? k : 0] : load<SIZE>(w + k * SIZE);
                    store<SIZE>(at, fused<SIZE>(g, weight, load<SIZE>(at)));
                }
            }
        }
    }

    template <int CHANNELS> SDFEEL_INLINE void unpack(int b) {
        for (int y = 0; y < L::height; y++)
            for (int x = 0; x < L::width; x++) {
                const int at = (y + L::padding_y) * Shape::WIDTH + x + L::padding_x;
                const float *from = sums + at * SLOTS;
                float *to = planes + b * SLOTS * PLANE + y * L::width + x;
                SDFEEL_UNROLL for (int c = 0; c < CHANNELS; c++) to[c * PLANE] = from[c];
            }
    }
};

} // namespace sdfeel
