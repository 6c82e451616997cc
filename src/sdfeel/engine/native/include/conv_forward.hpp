// Convolution, forward: all output positions of a channel as one dense line of vectors.
//
// Each input plane is copied once per column of the kernel, shifted by that column and cut to the
// width of the output. In such a copy the inputs of neighbouring positions are neighbours, also
// across the ends of rows, whatever the width: no lane is lost at an edge.
#pragma once

#include "conv_shape.hpp"

namespace sdfeel {

template <class L> struct ConvForward {
    using Shape = ConvShape<L>;
    using Tile = ForwardTile<Shape>;
    static constexpr int KERNEL_Y = Shape::KERNEL_Y, KERNEL_X = Shape::KERNEL_X;
    static constexpr int OUT_W = Shape::OUT_W, WEIGHTS = Shape::IN * Shape::TAPS;
    // With a vertical stride, rows 0, s, 2s, ... and rows 1, s+1, ... are copies of their own.
    static constexpr int PHASES = least(L::stride_y, KERNEL_Y);
    static constexpr int COPY_ROWS = divide_up(Shape::HEIGHT, L::stride_y);
    static constexpr int COPY = round_up(COPY_ROWS * OUT_W + 2 * ORDER, 16);
    static constexpr int LINE = (Shape::VECTORS + 2) * LANES;

    alignas(64) float copies[Shape::IN * KERNEL_X * PHASES][COPY];
    alignas(64) float lines[Shape::OUT][LINE]; // the outputs of one sample
    alignas(64) float weights[Shape::OUT][WEIGHTS]; // as torch has them

    // `plane`: input planes with their border, `stride` floats apart.
    void shift(const float *plane, int stride) {
        for (int c = 0; c < Shape::IN; c++)
            for (int x = 0; x < KERNEL_X; x++)
                for (int phase = 0; phase < PHASES; phase++) {
                    const float *from = plane + c * stride + x;
                    float *to = copies[(c * KERNEL_X + x) * PHASES + phase];
                    for (int y = phase; y < Shape::HEIGHT; y += L::stride_y, to += OUT_W)
                        copy_row(from + y * Shape::WIDTH, to);
                }
    }

    // The lines of `count` channels (all, or those that dropout keeps), several at a time.
    void convolve(const int *channels, int count, const float *bias) {
        int done = 0;
        for (; done + Tile::OUTS <= count; done += Tile::OUTS)
            group<Tile::OUTS>(channels + done, bias);
        if constexpr (L::Drop::active) rest<Tile::OUTS - 1>(channels + done, count - done, bias);
        else if constexpr (Shape::OUT % Tile::OUTS)
            group<Shape::OUT % Tile::OUTS>(channels + done, bias);
    }

  private:
    static SDFEEL_INLINE void copy_row(const float *from, float *to) {
        if constexpr (L::stride_x == 1) {
            constexpr int SIZE = fitting(OUT_W); // the next row overwrites what is too much
            for (int x = 0; x < OUT_W; x += SIZE) store<SIZE>(to + x, load<SIZE>(from + x));
        } else {
            for (int x = 0; x < OUT_W; x++) to[x] = from[x * L::stride_x];
        }
    }

    // The last channels, fewer than a tile, whose number is known only now.
    template <int OUTS> SDFEEL_INLINE void rest(const int *channels, int count, const float *bias) {
        if constexpr (OUTS > 0) {
            if (count == OUTS) group<OUTS>(channels, bias);
            else rest<OUTS - 1>(channels, count, bias);
        }
    }

    template <int OUTS> SDFEEL_NOINLINE void group(const int *channels, const float *bias) {
        int v = 0;
        for (; v + Tile::WIDE <= Shape::VECTORS; v += Tile::WIDE)
            tile<OUTS, Tile::WIDE>(channels, bias, v * LANES);
        if constexpr (Shape::VECTORS % Tile::WIDE)
            tile<OUTS, Shape::VECTORS % Tile::WIDE>(channels, bias, v * LANES);
    }

    template <int OUTS, int WIDE>
    SDFEEL_INLINE void tile(const int *channels, const float *bias, int position) {
        const float *w[OUTS];
        Floats<LANES> sums[OUTS][WIDE];
        SDFEEL_UNROLL for (int o = 0; o < OUTS; o++) {
            w[o] = weights[channels[o]];
            SDFEEL_UNROLL for (int j = 0; j < WIDE; j++)
                sums[o][j] = all<LANES>(bias[channels[o]]);
        }
        for (int k = 0, first = 0; k < Shape::IN * KERNEL_X; k++, first++) {
            if (k && k % KERNEL_X == 0) first += Shape::TAPS - KERNEL_X; // the next channel
            SDFEEL_UNROLL for (int y = 0; y < KERNEL_Y; y++) {
                const float *from =
                    copies[k * PHASES + y % PHASES] + y / L::stride_y * OUT_W + position;
                Floats<LANES> in[WIDE];
                SDFEEL_UNROLL for (int j = 0; j < WIDE; j++) in[j] = load_once<LANES>(from + j * LANES);
                SDFEEL_UNROLL for (int o = 0; o < OUTS; o++) {
                    const Floats<LANES> weight = all<LANES>(w[o][first + y * KERNEL_X]);
                    SDFEEL_UNROLL for (int j = 0; j < WIDE; j++)
                        sums[o][j] = fused<LANES>(weight, in[j], sums[o][j]);
                }
            }
        }
        SDFEEL_UNROLL for (int o = 0; o < OUTS; o++) {
            SDFEEL_UNROLL for (int j = 0; j < WIDE; j++)
                store<LANES>(lines[channels[o]] + position + j * LANES, sums[o][j]);
        }
    }
};

} // namespace sdfeel
