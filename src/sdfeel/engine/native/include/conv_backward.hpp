// Convolution, backward: from lists of winners to the gradients of weights and inputs.
#pragma once

#include "transpose.hpp"
#include "winners.hpp"

namespace sdfeel {

// Weights' gradient: every winner adds (its gradient) x (the inputs under the kernel) to one of the
// chains of sums: the winners of a sample take turns, samples come one after the other.
template <class L> struct WeightGradient {
    using Shape = ConvShape<L>;
    using Tile = WeightTile<Shape>;
    static constexpr int BLOCK = Tile::BLOCK, BLOCKS = Tile::BLOCKS, ROW = Tile::ROW;
    static constexpr int SLOT = Tile::SLOT;
    static constexpr int COUNT = round_up(Shape::OUT * BLOCKS * Shape::KERNEL_Y * ROW, LANES);
    static constexpr int CHAINS = Tile::CHAINS;

    // Where the weight (o, c, y, x) lies among the COUNT numbers of this layout.
    static constexpr int place(int o, int c, int y, int x) {
        return ((o * BLOCKS + c / BLOCK) * Shape::KERNEL_Y + y) * ROW + x * SLOT + c % BLOCK;
    }

    // Add to the CHAINS x COUNT sums what samples with these winners and inputs give. `inputs(s)`:
    // the padded input of a sample with BLOCK channels in SLOT floats, for channel block `b`.
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
            const float *input = inputs(s) + Y * Shape::WIDTH * SLOT;
            for (int i = 0; i < winners.count; i += CHAINS) {
                SDFEEL_UNROLL for (int e = 0; e < CHAINS; e++) {
                    const float *from = input + winners.places[i + e] * SLOT;
                    const Floats<SIZE> g = all<SIZE>(winners.changes[i + e]);
                    SDFEEL_UNROLL for (int y = 0; y < ROWS; y++) {
                        SDFEEL_UNROLL for (int j = 0; j < Tile::VECTORS; j++) {
                            Floats<SIZE> &sum = sums[e][y * Tile::VECTORS + j];
                            const float *at = from + y * Shape::WIDTH * SLOT + j * SIZE;
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
    static constexpr int LAST = Shape::IN - (Tile::BLOCKS - 1) * SLOTS; // channels of the last block
    // A weights' gradient of one block may have its weights in the same order.
    using Weights = WeightTile<Shape>;
    static constexpr bool ALIKE = Tile::BLOCKS == 1 && Weights::BLOCKS == 1 &&
                                  Weights::SLOT == SLOTS &&
                                  Weights::ROW == Shape::KERNEL_X * SLOTS;

    alignas(64) float weights[Tile::BLOCKS][Shape::OUT][Shape::TAPS][SLOTS];
    alignas(64) float sums[Shape::AREA * SLOTS];             // channels side by side
    alignas(64) float planes[Shape::IN * PLANE + 2 * ORDER]; // without the border, one by one

    // The weights as they are before the update: in the order of their gradient, and of torch.
    void pack(const float *own, const float *torchs) {
        if constexpr (ALIKE) memcpy(weights, own, sizeof weights);
        else
            for (int o = 0; o < Shape::OUT; o++)
                for (int b = 0; b < Tile::BLOCKS; b++) {
                    const float *from = torchs + (o * Shape::IN + b * SLOTS) * Shape::TAPS;
                    if (b < Tile::BLOCKS - 1)
                        turn<SLOTS, Shape::TAPS>(from, Shape::TAPS, weights[b][o][0], SLOTS);
                    else turn<LAST, Shape::TAPS>(from, Shape::TAPS, weights[b][o][0], SLOTS);
                }
    }

    // The gradient of one sample's input, plane by plane.
    template <class Lists> SDFEEL_NOINLINE const float *of(const Lists &lists) {
        for (int b = 0; b < Tile::BLOCKS; b++) {
            memset(sums, 0, sizeof sums);
            for (int o = 0; o < Shape::OUT; o++) scatter(lists(o), weights[b][o][0]);
            if (b < Tile::BLOCKS - 1) unpack<SLOTS>(b);
            else unpack<LAST>(b);
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
            float *to = sums + winners.places[i] * SLOTS;
            const Floats<SIZE> g = all<SIZE>(winners.changes[i]);
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
        constexpr bool FLAT = L::padding_x == 0; // rows follow one another in both
        constexpr int ROWS = FLAT ? 1 : L::height, COUNT = PLANE / ROWS;
        for (int y = 0; y < ROWS; y++) {
            const int at = (y + L::padding_y) * Shape::WIDTH + L::padding_x;
            turn<COUNT, CHANNELS>(sums + at * SLOTS, SLOTS, planes + b * SLOTS * PLANE + y * COUNT,
                                  PLANE);
        }
    }
};

} // namespace sdfeel
