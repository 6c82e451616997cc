// A linear layer before which nothing learns, with the ReLU and the dropout that follow it.
//
// Nothing flows further back, so the weights can lie in rows of outputs: neighbouring outputs are
// neighbouring lanes, no sum runs across lanes, and both passes walk through the weights (the
// largest thing such models have, often larger than the second cache) once and in order.
#pragma once

#include "dropout.hpp"
#include "linear.hpp"
#include "transpose.hpp"

namespace sdfeel {

// A tile of `a` broadcast numbers x `b` vectors for `n` vectors: the cheapest number of vectors.
constexpr int vectors_of_tile(int a, int n) {
    int best = 1, lowest = 1 << 30;
    for (int b = 1; a * b + b + 1 <= REGISTERS; b++) {
        int total = 0;
        for (int v = 0; v < n; v += b) {
            const int wide = least(b, n - v);
            total += most(most(a * wide, a + wide), 8) + 1;
        }
        if (total < lowest) best = b, lowest = total;
    }
    return best;
}

template <class L, int BATCH, bool MOMENTUM> struct FirstLinear {
    static constexpr int IN = L::in, OUT = L::out;
    static constexpr int64_t PARAMETERS = int64_t(IN) * OUT + (L::bias >= 0 ? OUT : 0);
    static constexpr bool CONTIGUOUS = true;
    static constexpr int IN_PLANE = 0, IN_ROW = 0;
    using Drop = typename L::Drop;
    using Update = Step<MOMENTUM>;
    static constexpr bool MASKED = L::relu || Drop::active;

    static constexpr int VECTORS = divide_up(OUT, LANES), WIDTH = VECTORS * LANES;
    // Rows a multiple of a kilobyte apart would fall on the same few lines of the first cache.
    static constexpr int STRIDE = WIDTH % 256 == 0 ? WIDTH + 16 : WIDTH;
    static constexpr int IN_STRIDE = round_up(IN, 16) % 256 == 0 ? IN + 16 : round_up(IN, 16);
    static constexpr int SAMPLES = sample_tile(BATCH), ROWS = round_up(BATCH, SAMPLES);
    static constexpr int WIDE = vectors_of_tile(SAMPLES, VECTORS);
    static constexpr int INPUTS = LANES == 16 ? 6 : 4; // of a tile of changes
    static constexpr int CHANGE_WIDE = vectors_of_tile(INPUTS, VECTORS);
    // Inputs whose weights stay in the first cache while all samples pass over them.
    static constexpr int SLICE = most(8, 24000 / (4 * STRIDE));

    alignas(64) float x[ROWS][IN_STRIDE];
    alignas(64) float weights[IN][STRIDE];
    alignas(64) float bias[WIDTH];
    alignas(64) float z[ROWS][WIDTH];
    alignas(64) float d[BATCH][WIDTH];
    float multipliers[MASKED ? BATCH * OUT : 1]; // of dropout, then also of ReLU
    typename Update::template Velocity<IN * STRIDE> velocity;
    typename Update::template Velocity<WIDTH> bias_velocity;

    float *input(int s) { return x[s]; }
    void fill(int s, const float *example) { std::memcpy(x[s], example, IN * 4); }

    void read(const float *row) {
        transpose(row + L::weight, IN, weights[0], STRIDE, OUT, IN);
        if (L::bias >= 0) std::memcpy(bias, row + L::bias, OUT * 4);
        velocity.forget();
        bias_velocity.forget();
    }
    void write(float *row) const {
        transpose(weights[0], STRIDE, row + L::weight, IN, IN, OUT);
        if (L::bias >= 0) std::memcpy(row + L::bias, bias, OUT * 4);
    }
    void pack() {}
    void draw(const Address &at, int n) {
        if constexpr (Drop::active) Drop::fill(at, long(n) * OUT, multipliers);
    }

    template <bool TRAIN, class Next> SDFEEL_NOINLINE void forward(int n, Next &next) {
        for (int s = 0; s < n; s++) std::memcpy(z[s], bias, sizeof bias);
        for (int i = 0; i < IN; i += SLICE) {
            const int end = least(IN, i + SLICE);
            int v = 0;
            for (; v + WIDE <= VECTORS; v += WIDE) outputs<WIDE>(v * LANES, i, end, n);
            if constexpr (VECTORS % WIDE) outputs<VECTORS % WIDE>(v * LANES, i, end, n);
        }
        for (int s = 0; s < n; s++)
            for (int o = 0; o < OUT; o++) {
                float kept = TRAIN && Drop::active ? multipliers[s * OUT + o] : 1.0f;
                if (L::relu && z[s][o] <= 0) kept = 0; // a NaN goes on, so that divergence is seen
                if (TRAIN && MASKED) multipliers[s * OUT + o] = kept;
                next.input(s)[o] = kept * z[s][o];
            }
    }

    template <class Next> SDFEEL_NOINLINE void backward(int n, Next &next, const Rule &rule) {
        for (int s = 0; s < n; s++) {
            const float *from = next.input_gradient(s);
            for (int o = 0; o < OUT; o++)
                d[s][o] = MASKED ? from[o] * multipliers[s * OUT + o] : from[o];
        }
        const Update update(rule);
        int i = 0;
        for (; i + INPUTS <= IN; i += INPUTS) change_rows<INPUTS>(i, n, update);
        if constexpr (IN % INPUTS) change_rows<IN % INPUTS>(i, n, update);
        if constexpr (L::bias >= 0)
            for (int o = 0; o < WIDTH; o += LANES) {
                Floats<LANES> change = {};
                for (int s = 0; s < n; s++) change += load<LANES>(d[s] + o);
                update.template operator()<LANES>(bias + o, bias_velocity.at(o), change);
            }
    }

  private:
    // Add to TILE vectors of outputs of all samples what inputs `begin` to `end` give.
    template <int TILE> SDFEEL_INLINE void outputs(int o, int begin, int end, int n) {
        // The next slice is fetched while this one works.
        for (int i = begin + SLICE; i < least(IN, end + SLICE); i++)
            SDFEEL_UNROLL for (int j = 0; j < TILE * LANES; j += 16)
                __builtin_prefetch(weights[i] + o + j);
        for (int s = 0; s < n; s += SAMPLES) {
            Floats<LANES> sums[SAMPLES][TILE];
            SDFEEL_UNROLL for (int t = 0; t < SAMPLES; t++) {
                SDFEEL_UNROLL for (int j = 0; j < TILE; j++)
                    sums[t][j] = load<LANES>(z[s + t] + o + j * LANES);
            }
            for (int i = begin; i < end; i++) {
                Floats<LANES> w[TILE];
                SDFEEL_UNROLL for (int j = 0; j < TILE; j++)
                    w[j] = load<LANES>(weights[i] + o + j * LANES);
                SDFEEL_UNROLL for (int t = 0; t < SAMPLES; t++) {
                    const Floats<LANES> in = all<LANES>(x[s + t][i]);
                    SDFEEL_UNROLL for (int j = 0; j < TILE; j++) sums[t][j] += in * w[j];
                }
            }
            SDFEEL_UNROLL for (int t = 0; t < SAMPLES; t++) {
                SDFEEL_UNROLL for (int j = 0; j < TILE; j++)
                    store<LANES>(z[s + t] + o + j * LANES, sums[t][j]);
            }
        }
    }

    // w += x * d, for COUNT inputs.
    template <int COUNT> SDFEEL_INLINE void change_rows(int i, int n, const Update &update) {
        int v = 0;
        for (; v + CHANGE_WIDE <= VECTORS; v += CHANGE_WIDE)
            change_tile<COUNT, CHANGE_WIDE>(i, v * LANES, n, update);
        if constexpr (VECTORS % CHANGE_WIDE)
            change_tile<COUNT, VECTORS % CHANGE_WIDE>(i, v * LANES, n, update);
    }
    template <int COUNT, int TILE>
    SDFEEL_INLINE void change_tile(int i, int o, int n, const Update &update) {
        Floats<LANES> change[COUNT][TILE] = {};
        for (int s = 0; s < n; s++) {
            Floats<LANES> g[TILE];
            SDFEEL_UNROLL for (int j = 0; j < TILE; j++) g[j] = load<LANES>(d[s] + o + j * LANES);
            SDFEEL_UNROLL for (int k = 0; k < COUNT; k++) {
                const Floats<LANES> in = all<LANES>(x[s][i + k]);
                SDFEEL_UNROLL for (int j = 0; j < TILE; j++) change[k][j] += in * g[j];
            }
        }
        SDFEEL_UNROLL for (int k = 0; k < COUNT; k++) {
            SDFEEL_UNROLL for (int j = 0; j < TILE; j++) {
                const int place = o + j * LANES;
                update.template operator()<LANES>(
                    weights[i + k] + place, velocity.at(long(i + k) * STRIDE + place), change[k][j]);
            }
        }
    }
};

// The better of the two for a layer: lanes without an output are lost.
template <class L, int BATCH, bool MOMENTUM>
using AnyLinear =
    std::conditional_t<!L::sends_gradient && L::out >= 2 * LANES, FirstLinear<L, BATCH, MOMENTUM>,
                       Linear<L, BATCH, MOMENTUM>>;

} // namespace sdfeel
