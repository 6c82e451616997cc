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
            const float *input = inputs(s) + Y * Shape::ROW * SLOT;
            const auto add_one = [&](int e, int i, Floats<SIZE> g) __attribute__((always_inline)) {
                const float *from = input + winners.places[i] * SLOT;
                SDFEEL_UNROLL for (int y = 0; y < ROWS; y++) {
                    SDFEEL_UNROLL for (int j = 0; j < Tile::VECTORS; j++) {
                        Floats<SIZE> &sum = sums[e][y * Tile::VECTORS + j];
                        const float *at = from + y * Shape::ROW * SLOT + j * SIZE;
                        sum = fused<SIZE>(g, load<SIZE>(at), sum);
                    }
                }
            };
            int i = 0;
            // Loads set the pace where a winner has few sums: one load is enough for four
            // gradients. (GCC takes a lane to 16 others by way of memory.)
            if constexpr (CHAINS > 1 && SIZE < 16)
                for (; i + 4 <= winners.count; i += 4) {
                    const Floats<4> g = load<4>(winners.changes + i);
                    add_one(0, i, lane<0, SIZE>(g));
                    add_one(1, i + 1, lane<1, SIZE>(g));
                    add_one(2 % CHAINS, i + 2, lane<2, SIZE>(g));
                    add_one(3 % CHAINS, i + 3, lane<3, SIZE>(g));
                }
            for (; i < winners.count; i += CHAINS)
                SDFEEL_UNROLL for (int e = 0; e < CHAINS; e++)
                    add_one(e, i + e, all<SIZE>(winners.changes[i + e]));
        }
        SDFEEL_UNROLL for (int e = 0; e < CHAINS; e++)
            SDFEEL_UNROLL for (int i = 0; i < SUMS; i++)
                store<SIZE>(to + e * COUNT + i * SIZE, sums[e][i]);
        if constexpr (Y + ROWS < Shape::KERNEL_Y)
            rows<Y + ROWS>(o, b, first, last, lists, inputs, changes);
    }
};

// Inputs' gradient: every winner adds (its gradient) x (the kernel) to the inputs under it. An
// input's sum is one chain: channel after channel, and in each of them winner after winner.
template <class L> struct InputGradient {
    using Shape = ConvShape<L>;
    static constexpr bool DENSE = DenseTile<L>::fits; // every output is a winner
    using Tile = Choose<DENSE, DenseTile<L>, InputTile<Shape>>;
    static constexpr int SLOTS = Tile::SLOTS, SIZE = Tile::SIZE, PLANE = L::height * L::width;
    static constexpr int BLOCKS = Tile::BLOCKS, REST = Tile::REST, PAIR = Tile::PAIR;
    // A weights' gradient of one block may have its weights in the same order.
    using Weights = WeightTile<Shape>;
    static constexpr bool ALIKE = REST == 0 && BLOCKS == 1 && Weights::BLOCKS == 1 &&
                                  Weights::SLOT == SLOTS &&
                                  Weights::ROW == Shape::KERNEL_X * SLOTS;

    alignas(64) float weights[BLOCKS][Shape::OUT][Shape::TAPS][SLOTS];
    alignas(64) float sums[Shape::AREA * SLOTS];             // channels side by side
    alignas(64) float planes[Shape::IN * PLANE + 2 * ORDER]; // without the border, one by one
    // Of the rest; the weights with zeros before and behind them.
    alignas(64) float rest_weights[REST ? Shape::OUT : 1][Shape::KERNEL_Y][8 + PAIR];
    alignas(64) float rest_sums[REST ? Shape::AREA * REST + PAIR : 1];

    // The weights as they are before the update: in the order of their gradient, and of torch.
    void pack(const float *own, const float *torchs) {
        if constexpr (ALIKE) memcpy(weights, own, sizeof weights);
        else
            for (int o = 0; o < Shape::OUT; o++, torchs += Shape::IN * Shape::TAPS) {
                for (int b = 0; b < BLOCKS - 1; b++)
                    turn<SLOTS, Shape::TAPS>(torchs + b * SLOTS * Shape::TAPS, Shape::TAPS,
                                             weights[b][o][0], SLOTS);
                turn<Tile::LAST, Shape::TAPS>(torchs + (BLOCKS - 1) * SLOTS * Shape::TAPS,
                                              Shape::TAPS, weights[BLOCKS - 1][o][0], SLOTS);
                for (int c = 0; c < REST; c++)
                    for (int y = 0; y < Shape::KERNEL_Y; y++)
                        for (int x = 0; x < Shape::KERNEL_X; x++)
                            rest_weights[o][y][8 + x * REST + c] =
                                torchs[(Tile::MAIN + c) * Shape::TAPS + y * Shape::KERNEL_X + x];
            }
    }

    // The gradient of one sample's input, plane by plane.
    template <class Lists> SDFEEL_NOINLINE const float *of(const Lists &lists) {
        if constexpr (REST) memset(rest_sums, 0, sizeof rest_sums);
        for (int b = 0; b < BLOCKS; b++) {
            if constexpr (DENSE) gather(lists, weights[b][0][0]);
            else scatter_all(lists, b);
            if (b < BLOCKS - 1) unpack<SLOTS>(sums, SLOTS, b * SLOTS);
            else unpack<Tile::LAST>(sums, SLOTS, b * SLOTS);
        }
        if constexpr (REST) unpack<REST>(rest_sums, REST, Tile::MAIN);
        return planes;
    }

  private:
    // Each input adds up what all outputs that it was part of send back. Earlier winners have it
    // under later taps, so taps are walked through backwards.
    template <class Lists> SDFEEL_INLINE void gather(const Lists &lists, const float *w) {
        for (int y = 0; y < L::height; y++) {
            gather_piece<0>(lists, w, y, 0);
            if constexpr (Tile::END > 0) {
                for (int x = Tile::WIDE; x < Tile::END; x += Tile::WIDE)
                    gather_piece<-1>(lists, w, y, x);
                gather_piece<Tile::END>(lists, w, y, Tile::END);
            }
        }
    }
    // Inputs from (y, x) on; AT: x, or -1 if it makes no difference.
    template <int AT, class Lists>
    SDFEEL_INLINE void gather_piece(const Lists &lists, const float *w, int y, int x) {
        constexpr int WIDE = least(Tile::WIDE, L::width - most(AT, 0)), VECTORS = Tile::VECTORS;
        const int top = y + L::padding_y; // the row of the output under the first row of the kernel
        const int last = least(Shape::KERNEL_Y - 1, top), first = most(0, top - Shape::OUT_H + 1);
        Floats<SIZE> tile[WIDE][VECTORS] = {};
        for (int o = 0; o < Shape::OUT; o++, w += Shape::TAPS * SLOTS) {
            const Winners<Shape> &winners = lists(o);
            if (winners.count == 0) continue; // dropped
            for (int v = last; v >= first; v--) {
                const float *from = winners.changes + (top - v) * Shape::OUT_W + x + L::padding_x;
                SDFEEL_UNROLL for (int u = Shape::KERNEL_X - 1; u >= 0; u--) {
                    const float *row = w + (v * Shape::KERNEL_X + u) * SLOTS;
                    Floats<SIZE> weight[VECTORS];
                    SDFEEL_UNROLL for (int j = 0; j < VECTORS; j++)
                        weight[j] = load<SIZE>(row + j * SIZE);
                    SDFEEL_UNROLL for (int i = 0; i < WIDE; i++) {
                        const int column = AT + i + L::padding_x - u;
                        if (AT >= 0 && (column < 0 || column >= Shape::OUT_W)) continue;
                        const Floats<SIZE> g = all<SIZE>(from[i - u]);
                        SDFEEL_UNROLL for (int j = 0; j < VECTORS; j++)
                            tile[i][j] = fused<SIZE>(g, weight[j], tile[i][j]);
                    }
                }
            }
        }
        float *to = sums + (top * Shape::WIDTH + x + L::padding_x) * SLOTS;
        SDFEEL_UNROLL for (int i = 0; i < WIDE; i++)
            SDFEEL_UNROLL for (int j = 0; j < VECTORS; j++)
                store<SIZE>(to + i * SLOTS + j * SIZE, tile[i][j]);
    }

    template <class Lists> SDFEEL_INLINE void scatter_all(const Lists &lists, int b) {
        memset(sums, 0, sizeof sums);
        for (int o = 0; o < Shape::OUT; o++)
            if (b < BLOCKS - 1) scatter<false>(lists(o), b, o);
            else scatter<REST != 0>(lists(o), b, o);
    }
    template <bool ALL> SDFEEL_INLINE void scatter(const Winners<Shape> &winners, int b, int o) {
        constexpr int COUNT = Shape::TAPS * Tile::VECTORS;
        constexpr int HELD = COUNT <= ACCUMULATORS ? COUNT : 0; // kernels small enough stay loaded
        const float *w = weights[b][o][0];
        Floats<SIZE> held[most(HELD, 1)];
        SDFEEL_UNROLL for (int i = 0; i < HELD; i++) held[i] = load<SIZE>(w + i * SIZE);
        for (int i = 0; i < winners.count; i++) {
            const int place = winners.places[i];
            float *to = sums + place * SLOTS;
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
            if constexpr (ALL) scatter_rest(place, winners.changes[i], rest_weights[o][0]);
        }
    }
    SDFEEL_INLINE void scatter_rest(int place, float change, const float *w) {
        const int shift = place * REST % 8;
        float *to = rest_sums + (place * REST - shift);
        const Floats<8> g = all<8>(change);
        SDFEEL_UNROLL for (int y = 0; y < Shape::KERNEL_Y; y++) {
            SDFEEL_UNROLL for (int j = 0; j < PAIR; j += 8) {
                float *at = to + y * Shape::WIDTH * REST + j;
                const Floats<8> weight = load<8>(w + y * (8 + PAIR) + 8 - shift + j);
                store<8>(at, fused<8>(g, weight, load<8>(at)));
            }
        }
    }

    // CHANNELS side by side, `slots` floats apart, to their planes.
    template <int CHANNELS> SDFEEL_INLINE void unpack(const float *from, int slots, int first) {
        constexpr bool FLAT = L::padding_x == 0; // rows follow one another in both
        constexpr int ROWS = FLAT ? 1 : L::height, COUNT = PLANE / ROWS;
        for (int y = 0; y < ROWS; y++) {
            const int at = (y + L::padding_y) * Shape::WIDTH + L::padding_x;
            float *to = planes + first * PLANE + y * COUNT;
            if constexpr (CHANNELS == 2 && REST == 2) { // which are `slots` apart
                in_vectors<COUNT>([&](auto lanes, int i) {
                    constexpr int N = decltype(lanes)::value;
                    const float *pairs = from + (at + i) * 2;
                    const Floats<N> a = load<N>(pairs), b = load<N>(pairs + N);
                    store<N>(to + i, even<N>(a, b));
                    store<N>(to + PLANE + i, odd<N>(a, b));
                });
            } else turn<COUNT, CHANNELS>(from + at * slots, slots, to, PLANE);
        }
    }
};

} // namespace sdfeel
