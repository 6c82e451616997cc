// The numbers of one convolution, all known when it is compiled, and how its kernels are tiled.
#pragma once

#include "vectors.hpp"

namespace sdfeel {

// `L` gives in, height, width, out, kernel_y, kernel_x, stride_y, stride_x, padding_y, padding_x,
// pool (2x2 after the convolution), relu, sends_gradient, weight, bias (places in the row, bias
// -1: none) and Drop (of channels).
template <class L> struct ConvShape {
    static constexpr int IN = L::in, OUT = L::out, KERNEL_Y = L::kernel_y, KERNEL_X = L::kernel_x;
    static constexpr int TAPS = KERNEL_Y * KERNEL_X;
    static constexpr int HEIGHT = L::height + 2 * L::padding_y;
    static constexpr int WIDTH = L::width + 2 * L::padding_x, AREA = HEIGHT * WIDTH;
    static constexpr int OUT_H = (HEIGHT - KERNEL_Y) / L::stride_y + 1;
    static constexpr int OUT_W = (WIDTH - KERNEL_X) / L::stride_x + 1;
    static constexpr int POSITIONS = OUT_H * OUT_W;
    static constexpr int FINAL_H = L::pool ? OUT_H / 2 : OUT_H;
    static constexpr int FINAL_W = L::pool ? OUT_W / 2 : OUT_W, FINAL = FINAL_H * FINAL_W;
    static constexpr int VECTORS = divide_up(POSITIONS, LANES);

    // Where the backward pass has the input (y, x). A single plane lies there TWICE, the second
    // time half a cache line further, so that no eight neighbours need straddle two lines.
    static constexpr bool TWICE = IN == 1 && !L::sends_gradient && KERNEL_X > 4 && KERNEL_X <= 8;
    static constexpr int ROW = TWICE ? round_up(WIDTH, 16) : WIDTH, PLACES = HEIGHT * ROW + 16;
    static constexpr int place(int y, int x) {
        return y * ROW + x + (TWICE && x % 16 >= 8 ? PLACES + 8 : 0);
    }
};

// Forward: OUTS channels x WIDE vectors of positions are summed in registers.
//
// Chosen by time, not by multiplications alone: a step of the inner loop does OUTS * WIDE of them
// and loads OUTS weights and WIDE inputs, most of which straddle two cache lines; fewer than
// eight sums would wait for one another. One register more than that is left to the compiler, which
// would move sums to memory and back otherwise.
template <class Shape> struct ForwardTile {
    static constexpr int64_t step(int outs, int wide) { // of the inner loop, in eighths of a cycle
        return outs && wide ? 4 * most(most(outs * wide, outs + 2 * wide), 8) + outs + 2 * wide : 0;
    }
    static constexpr int64_t cost(int outs, int wide) {
        const int last_outs = Shape::OUT % outs, last_wide = Shape::VECTORS % wide;
        const int64_t row = Shape::VECTORS / wide, column = Shape::OUT / outs;
        return column * (row * step(outs, wide) + step(outs, last_wide)) +
               row * step(last_outs, wide) + step(last_outs, last_wide);
    }
    static constexpr int best() {
        int found = 0;
        int64_t lowest = int64_t(1) << 60;
        for (int wide = 1; wide <= 6; wide++)
            for (int outs = 1; outs * wide + wide + 1 < REGISTERS; outs++)
                if (cost(outs, wide) < lowest) lowest = cost(outs, wide), found = outs * 16 + wide;
        return found;
    }
    static constexpr int OUTS = best() / 16, WIDE = best() % 16;
};

// Weight gradient: each weight has CHAINS sums, which the winners of a sample join in turn: a
// kernel of few vectors has too few sums otherwise, and they would wait for one another. Part of
// the order, so of no CPU in particular.
template <class Shape> struct WeightOrder {
    static constexpr int VECTORS = Shape::KERNEL_Y * divide_up(Shape::IN * Shape::KERNEL_X, ORDER);
    static constexpr int CHAINS = VECTORS == 1 ? 4 : VECTORS < 8 ? 2 : 1;
};

// BLOCK input channels lie side by side at each position, in SLOT floats: either without a gap, so
// that a kernel's row is fewest vectors, or in whole vectors, so that none of them straddles two
// cache lines. A kernel's row is VECTORS of SIZE lanes, which may be fewer than the CPU has: short
// vectors straddle less. ROWS kernel rows are summed at once.
template <class Shape> struct WeightTile {
    static constexpr int CHAINS = WeightOrder<Shape>::CHAINS;
    struct Choice {
        int block, rows;
        bool whole, narrow;
        constexpr int slot() const { return whole ? round_up(block, fitting(block)) : block; }
        constexpr int size() const {
            const int fit = fitting(whole ? block : Shape::KERNEL_X * block);
            return narrow ? least(8, fit) : fit;
        }
        constexpr int vectors() const { return divide_up(Shape::KERNEL_X * slot(), size()); }
        constexpr int load() const { // of one vector, in eighths of a cycle
            const bool halves = size() == 16 && !WHOLE;
            return slot() % size() == 0 ? (halves ? 8 : 4) : (size() < 16 ? 5 : WHOLE ? 8 : 15);
        }
        // A block that is too large for the first cache comes from the second one for each group of
        // rows: so much of that for each winner.
        constexpr int fetch() const {
            const int lines = Shape::AREA * slot() / 16;
            return 64 * lines > FIRST_CACHE / 8 * 7 ? 16 * lines / Shape::FINAL : 0;
        }
        constexpr int cost() const { // of one winner
            int total = 0;
            for (int y = 0; y < Shape::KERNEL_Y; y += rows) {
                const int sums = least(rows, Shape::KERNEL_Y - y) * vectors();
                total += most(most(load() * sums, fetch()), 32 / CHAINS) + 16;
            }
            return total * (Shape::IN / block);
        }
        constexpr bool fits() const {
            return Shape::IN % block == 0 && !(whole && block == 1) &&
                   CHAINS * rows * vectors() <= ACCUMULATORS;
        }
    };
    static constexpr Choice best() {
        Choice found{1, 1, false, false}; // if nothing fits, one channel at a time
        int lowest = 1 << 30;
        for (int block = 1; block <= Shape::IN; block++)
            for (int kind = 0; kind < 4; kind++)
                for (int rows = 1; rows <= Shape::KERNEL_Y; rows++) {
                    const Choice next{block, rows, kind / 2 == 1, kind % 2 == 1};
                    if (next.fits() && next.cost() < lowest) lowest = next.cost(), found = next;
                }
        return found;
    }
    static constexpr Choice BEST = best();
    static constexpr int BLOCK = BEST.block, ROWS = BEST.rows, BLOCKS = Shape::IN / BLOCK;
    static constexpr int SLOT = BEST.slot(), SIZE = BEST.size();
    static constexpr int VECTORS = BEST.vectors(), ROW = VECTORS * SIZE;
};

// Input gradient: a position has SLOTS neighbouring floats, a multiple of SIZE, so that every
// addition falls on the same lanes of memory as the one before it and can be forwarded.
//
// One or two channels more than a vector holds (REST) would cost another vector at each position.
// They lie apart, without a gap: a kernel's row of them is PAIR, two vectors at an even place. If
// stores are WHOLE, one of 16 floats takes no longer than one of 8, and all lie together.
template <class Shape> struct InputTile {
    static constexpr int PAIR = 16;
    static constexpr int slots(int channels) { return round_up(channels, fitting(channels)); }
    static constexpr int rest(int channels) {
        return channels > 0 && LANES >= 8 && !WHOLE && Shape::IN > 8 && Shape::WIDTH * channels % 8 == 0 &&
               (Shape::KERNEL_X - 1) * channels + 8 <= PAIR &&
               slots(Shape::IN - channels) < slots(Shape::IN) ? channels : 0;
    }
    static constexpr int REST = Shape::IN % 8 <= 2 ? rest(Shape::IN % 8) : 0;
    static constexpr int MAIN = Shape::IN - REST;
    static constexpr int SIZE = fitting(MAIN), NEEDED = divide_up(MAIN, SIZE);
    // As many vectors as keep one block of all positions in the first cache. Winners overlap, so
    // each waits for what the one before it has stored. Where that takes longer than storing, two
    // vectors wait together, even if they come from the second cache; the kernel should stay in
    // registers.
    static constexpr int HELD = most(1, ACCUMULATORS / Shape::TAPS);
    static constexpr int FIT = WHOLE ? least(2, HELD) : most(1, 20000 / (Shape::AREA * SIZE * 4));
    static constexpr int BLOCKS = divide_up(NEEDED, least(NEEDED, FIT));
    static constexpr int VECTORS = divide_up(NEEDED, BLOCKS), SLOTS = VECTORS * SIZE;
    static constexpr int LAST = MAIN - (BLOCKS - 1) * SLOTS; // channels of the last block
};

// The same where every position has a gradient (`fits`): WIDE neighbours of a row x VECTORS of
// channels are summed in registers, as in the forward pass, and stored once.
template <class L> struct DenseTile {
    using Shape = ConvShape<L>;
    static constexpr int PAIR = 0, REST = 0, MAIN = Shape::IN;
    static constexpr int SIZE = fitting(MAIN), NEEDED = divide_up(MAIN, SIZE);
    static constexpr int cost(int wide, int vectors) {
        int row = 0;
        for (int x = 0; x < L::width; x += wide) {
            const int some = least(wide, L::width - x);
            // Multiplications; loads; what waits; and the weights come from the second cache.
            row += most(most(some * vectors, some + vectors), most(8, 4 * vectors)) + 1;
        }
        return row * divide_up(NEEDED, vectors);
    }
    static constexpr int best() {
        int found = 0, lowest = 1 << 30;
        for (int vectors = 1; vectors <= least(4, NEEDED); vectors++)
            for (int wide = 1; wide <= L::width && (wide + 1) * vectors < REGISTERS; wide++)
                if (cost(wide, vectors) < lowest)
                    lowest = cost(wide, vectors), found = wide * 8 + vectors;
        return found;
    }
    static constexpr int WIDE = best() / 8, VECTORS = best() % 8, SLOTS = VECTORS * SIZE;
    static constexpr int BLOCKS = divide_up(NEEDED, VECTORS);
    static constexpr int LAST = MAIN - (BLOCKS - 1) * SLOTS;
    // Where the last piece of a row begins. Only it and the first may miss columns of the kernel.
    static constexpr int END = (L::width - 1) / WIDE * WIDE;
    static constexpr bool fits =
        !L::pool && !L::relu && L::stride_y == 1 && L::stride_x == 1 &&
        (END == 0 || (WIDE + L::padding_x >= L::kernel_x - 1 &&
                      END - 1 + L::padding_x < Shape::OUT_W));
};

} // namespace sdfeel
