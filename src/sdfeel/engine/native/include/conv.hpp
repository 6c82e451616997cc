// A convolution with the channel dropout, the 2x2 max-pooling and the ReLU that follow it.
//
// These three commute (dropout multiplies by a number that is not negative), so they are one step
// whatever their order in the model. A channel that dropout removes is not computed at all.
#pragma once

#include "conv_backward.hpp"
#include "conv_forward.hpp"
#include "dropout.hpp"
#include "sgd.hpp"

namespace sdfeel {

template <class L, int BATCH, class Update> struct Conv {
    using Shape = ConvShape<L>;
    using Weights = WeightGradient<L>;
    using Pool = Pooling<L>;
    using Drop = typename L::Drop;
    static constexpr int IN = Shape::IN, OUT = Shape::OUT;
    static constexpr int BLOCK = Weights::BLOCK, SLOT = Weights::SLOT;
    static constexpr int64_t PARAMETERS =
        int64_t(OUT) * IN * Shape::TAPS + (L::bias >= 0 ? OUT : 0);

    // Producers write between the borders, which stay zero.
    static constexpr bool CONTIGUOUS = false;
    static constexpr int IN_ROW = Shape::WIDTH, IN_PLANE = round_up(Shape::AREA + 2 * ORDER, 16);
    static constexpr int CORNER = L::padding_y * Shape::WIDTH + L::padding_x;
    static constexpr bool TWICE = Shape::TWICE, COPIED = BLOCK > 1 || TWICE;
    static constexpr int SIDE_BY_SIDE =
        round_up((TWICE ? 2 * Shape::PLACES : Shape::AREA) * SLOT + 2 * ORDER, 16);
    static constexpr int OUT_WIDTH = round_up(OUT, LANES);
    // Samples whose inputs stay in the first cache while all channels' winners pass over them.
    static constexpr int TOGETHER = most(1, 24000 / (4 * SIDE_BY_SIDE));

    alignas(64) float x[BATCH][IN][IN_PLANE];
    alignas(64) float side_by_side[COPIED ? BATCH : 1][Weights::BLOCKS][SIDE_BY_SIDE];
    alignas(64) float weights[Weights::COUNT];
    alignas(64) float changes[Weights::CHAINS * Weights::COUNT];
    alignas(64) float bias[OUT_WIDTH], bias_changes[OUT_WIDTH];
    typename Update::template Velocity<Weights::COUNT> velocity;
    typename Update::template Velocity<OUT_WIDTH> bias_velocity;
    ConvForward<L> kernel;
    struct Nothing {};
    Choose<L::sends_gradient, InputGradient<L>, Nothing> back;
    float multipliers[Drop::active ? BATCH * OUT : 1];
    uint8_t codes[BATCH][OUT][Pool::CODES];
    Winners<Shape> winners[BATCH][OUT];

    float *input(int s) { return x[s][0] + CORNER; }
    const float *input_gradient(int s) {
        return back.of([&](int o) -> const Winners<Shape> & { return winners[s][o]; });
    }
    void fill(int s, const float *example) {
        for (int c = 0; c < IN; c++)
            for (int y = 0; y < L::height; y++)
                memcpy(input(s) + c * IN_PLANE + y * IN_ROW,
                            example + (c * L::height + y) * L::width, L::width * 4);
    }

    void read(const float *row) {
        each_block([&](int torchs, int own, auto taps) {
            constexpr int TAPS = decltype(taps)::value;
            turn<BLOCK, TAPS>(row + L::weight + torchs, Shape::TAPS, weights + own, SLOT);
        });
        if (L::bias >= 0) memcpy(bias, row + L::bias, OUT * 4);
        velocity.forget();
        bias_velocity.forget();
    }
    void write(float *row) const {
        as_torch(row + L::weight);
        if (L::bias >= 0) memcpy(row + L::bias, bias, OUT * 4);
    }
    // What was read is a shift, not a model.
    void take_shift(float rate) {
        velocity.keep(weights, rate);
        bias_velocity.keep(bias, rate);
    }
    SDFEEL_NOINLINE void pack() {
        as_torch(kernel.weights[0]);
        if constexpr (L::sends_gradient) back.pack(weights, kernel.weights[0]);
    }
    void draw(const Address &at, int n) {
        if constexpr (Drop::active) Drop::fill(at, int64_t(n) * OUT, multipliers);
    }

    template <bool TRAIN, class Next> void forward(int n, Next &next) {
        for (int s = 0; s < n; s++) {
            int channels[OUT], count = 0;
            for (int o = 0; o < OUT; o++)
                if (!TRAIN || scale(s, o) != 0) channels[count++] = o;
            kernel.shift(x[s][0], IN_PLANE);
            kernel.convolve(channels, count, bias);
            finish<TRAIN>(s, next);
            if (TRAIN) interleave(s);
        }
    }

    template <class Next> void backward(int n, Next &next, const Rule &rule) {
        memset(bias_changes, 0, sizeof bias_changes);
        for (int s = 0; s < n; s++) list(s, next.input_gradient(s));
        memset(changes, 0, sizeof changes);
        const auto lists = [&](int s, int o) -> const Winners<Shape> & { return winners[s][o]; };
        for (int s = 0; s < n; s += TOGETHER)
            for (int b = 0; b < Weights::BLOCKS; b++)
                Weights::add(b, s, least(n, s + TOGETHER), lists,
                             [&](int i) { return neighbours(i, b); }, changes);
        for (int e = 1; e < Weights::CHAINS; e++)
            for (int i = 0; i < Weights::COUNT; i += LANES) {
                const float *chain = changes + e * Weights::COUNT;
                store<LANES>(changes + i, load<LANES>(changes + i) + load<LANES>(chain + i));
            }
        const Update update(rule);
        apply(update, weights, velocity, changes, Weights::COUNT);
        if (L::bias >= 0) apply(update, bias, bias_velocity, bias_changes, OUT_WIDTH);
    }

  private:
    SDFEEL_INLINE float scale(int s, int o) const {
        if constexpr (Drop::active) return multipliers[s * OUT + o];
        return 1;
    }

    // act(torchs, own, taps): where torch keeps the weights of some neighbouring taps, and where
    // WeightGradient does. Torch has BLOCK rows of taps; we have a row of SLOT numbers for each
    // tap.
    template <class Act> static SDFEEL_INLINE void each_block(const Act &act) {
        constexpr bool GAPS = Weights::ROW != Shape::KERNEL_X * SLOT; // between a kernel's rows
        constexpr int ROWS = GAPS ? Shape::KERNEL_Y : 1, TAPS = Shape::TAPS / ROWS;
        for (int o = 0; o < OUT; o++)
            for (int c = 0; c < IN; c += BLOCK)
                for (int y = 0; y < ROWS; y++)
                    act((o * IN + c) * Shape::TAPS + y * TAPS, Weights::place(o, c, y, 0),
                        Number<TAPS>());
    }
    void as_torch(float *to) const {
        each_block([&](int torchs, int own, auto taps) {
            constexpr int TAPS = decltype(taps)::value;
            turn<TAPS, BLOCK>(weights + own, SLOT, to + torchs, Shape::TAPS);
        });
    }

    // The padded input with BLOCK channels side by side, or one of them twice.
    SDFEEL_NOINLINE void interleave(int s) {
        constexpr bool SPILLS = BLOCK < 4 || SLOT >= round_up(BLOCK, 4);
        if constexpr (BLOCK > 1)
            for (int b = 0; b < Weights::BLOCKS; b++)
                turn<BLOCK, Shape::AREA, SPILLS>(x[s][b * BLOCK], IN_PLANE, side_by_side[s][b],
                                                 SLOT);
        if constexpr (TWICE)
            for (int y = 0; y < Shape::HEIGHT; y++) {
                float *to = side_by_side[s][0] + y * Shape::ROW;
                // The next row overwrites what is too much.
                for (int i = 0; i < Shape::WIDTH; i += 8) {
                    const Floats<8> some = load<8>(x[s][0] + y * Shape::WIDTH + i);
                    store<8>(to + i, some);
                    store<8>(to + Shape::PLACES + 8 + i, some);
                }
            }
    }
    SDFEEL_INLINE const float *neighbours(int s, int b) const {
        return COPIED ? side_by_side[COPIED ? s : 0][b] : x[s][b];
    }

    template <bool TRAIN, class Next> SDFEEL_NOINLINE void finish(int s, Next &next) {
        constexpr int ROW = Next::CONTIGUOUS ? Shape::FINAL_W : Next::IN_ROW;
        constexpr int PLANE = Next::CONTIGUOUS ? Shape::FINAL : Next::IN_PLANE;
        for (int o = 0; o < OUT; o++) {
            float *to = next.input(s) + o * PLANE;
            const float kept = TRAIN ? scale(s, o) : 1.0f;
            if (kept != 0)
                Pool::template finish<TRAIN>(kernel.lines[o], kept, to, ROW, codes[s][o]);
            else
                for (int y = 0; y < Shape::FINAL_H; y++)
                    memset(to + y * ROW, 0, Shape::FINAL_W * 4);
        }
    }

    SDFEEL_NOINLINE void list(int s, const float *gradients) {
        for (int o = 0; o < OUT; o++) {
            const float kept = scale(s, o);
            winners[s][o].count = 0;
            if (kept != 0)
                bias_changes[o] += Pool::list(gradients + o * Shape::FINAL, kept, codes[s][o],
                                              winners[s][o]);
        }
    }
};

} // namespace sdfeel
