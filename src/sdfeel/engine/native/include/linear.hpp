// A linear layer with the ReLU and the dropout that follow it.
//
// The weights stay in rows of inputs, as torch has them. The backward pass reads and writes them
// once: what flows back is taken from the old weights in the same sweep that updates them.
#pragma once

#include "dropout.hpp"
#include "sgd.hpp"
#include "vectors.hpp"

namespace sdfeel {

// Samples that share one load of a weight: few are left over, and the sums fit the registers.
constexpr int sample_tile(int batch) {
    int best = 1, waste = 1 << 30;
    for (int tile : {5, 4, 6, 3, 2, 1}) {
        const int lost = 8 * (round_up(batch, tile) - batch) + (tile < 4 ? 8 / tile : 0);
        if (lost < waste) best = tile, waste = lost;
    }
    return best;
}

// `L` gives in, out, weight, bias (places in the row, bias -1: none), relu, sends_gradient, Drop.
template <class L, int BATCH, bool MOMENTUM> struct Linear {
    static constexpr int IN = L::in, OUT = L::out;
    static constexpr int64_t PARAMETERS = int64_t(IN) * OUT + (L::bias >= 0 ? OUT : 0);
    static constexpr bool CONTIGUOUS = true; // planes of the producer lie one after another
    static constexpr int IN_PLANE = 0, IN_ROW = 0;
    using Drop = typename L::Drop;
    static constexpr bool MASKED = L::relu || Drop::active;

    static constexpr int VECTORS = divide_up(IN, LANES), WIDTH = VECTORS * LANES;
    // Rows a multiple of a kilobyte apart would fall on the same few lines of the first cache.
    static constexpr int STRIDE = WIDTH % 256 == 0 ? WIDTH + 16 : WIDTH;
    static constexpr int OUT_WIDTH = round_up(OUT, LANES);
    static constexpr int SAMPLES = sample_tile(BATCH), ROWS = round_up(BATCH, SAMPLES);
    static constexpr int FORWARD_OUTS = most(1, least(4, ACCUMULATORS / SAMPLES));
    static constexpr int CHANGE_OUTS = LANES == 16 ? 6 : 4;
    static constexpr int CHANGE_VECTORS = most(1, ACCUMULATORS / CHANGE_OUTS);
    static constexpr int FUSED_OUTS = ACCUMULATORS > 20 ? 8 : 4;

    alignas(64) float x[ROWS][STRIDE];
    alignas(64) float weights[OUT][STRIDE];
    alignas(64) float bias[OUT_WIDTH];
    alignas(64) float d[BATCH][OUT_WIDTH];
    alignas(64) float dx[L::sends_gradient ? BATCH : 1][STRIDE];
    float over_read[LANES];
    float multipliers[MASKED ? BATCH * OUT : 1]; // of dropout, then also of ReLU
    using Update = Step<MOMENTUM>;
    typename Update::template Velocity<OUT * STRIDE> velocity;
    typename Update::template Velocity<OUT_WIDTH> bias_velocity;

    float *input(int s) { return x[s]; }
    const float *input_gradient(int s) { return dx[s]; }
    void fill(int s, const float *example) { std::memcpy(x[s], example, IN * 4); }

    void read(const float *row) {
        for (int o = 0; o < OUT; o++) {
            std::memcpy(weights[o], row + L::weight + o * IN, IN * 4);
            // The spare lanes took part in the last client's sums: if it diverged, they are NaN.
            std::memset(weights[o] + IN, 0, (WIDTH - IN) * 4);
        }
        if (L::bias >= 0) std::memcpy(bias, row + L::bias, OUT * 4);
        velocity.forget();
        bias_velocity.forget();
    }
    void write(float *row) const {
        for (int o = 0; o < OUT; o++) std::memcpy(row + L::weight + o * IN, weights[o], IN * 4);
        if (L::bias >= 0) std::memcpy(row + L::bias, bias, OUT * 4);
    }
    void pack() {}
    void draw(const Address &at, int n) {
        if constexpr (Drop::active) Drop::fill(at, long(n) * OUT, multipliers);
    }

    template <bool TRAIN, class Next> SDFEEL_NOINLINE void forward(int n, Next &next) {
        int o = 0;
        for (; o + FORWARD_OUTS <= OUT; o += FORWARD_OUTS)
            outputs<TRAIN, FORWARD_OUTS>(o, n, next);
        if constexpr (OUT % FORWARD_OUTS) outputs<TRAIN, OUT % FORWARD_OUTS>(o, n, next);
    }

    template <class Next> SDFEEL_NOINLINE void backward(int n, Next &next, const Rule &rule) {
        for (int s = 0; s < n; s++) {
            const float *from = next.input_gradient(s);
            for (int o = 0; o < OUT; o++)
                d[s][o] = MASKED ? from[o] * multipliers[s * OUT + o] : from[o];
        }
        const Update update(rule);
        int o = 0;
        if constexpr (L::sends_gradient) {
            for (int s = 0; s < n; s++) std::memset(dx[s], 0, WIDTH * 4);
            for (; o + FUSED_OUTS <= OUT; o += FUSED_OUTS) both<FUSED_OUTS>(o, n, update);
            if constexpr (OUT % FUSED_OUTS) both<OUT % FUSED_OUTS>(o, n, update);
        } else {
            for (; o + CHANGE_OUTS <= OUT; o += CHANGE_OUTS) change_rows<CHANGE_OUTS>(o, n, update);
            if constexpr (OUT % CHANGE_OUTS) change_rows<OUT % CHANGE_OUTS>(o, n, update);
        }
        if constexpr (L::bias >= 0) change_bias(n, update);
    }

  private:
    // OUTS outputs of all samples: a tile of OUTS x SAMPLES sums in registers.
    template <bool TRAIN, int OUTS, class Next> SDFEEL_INLINE void outputs(int o, int n, Next &next) {
        for (int s = 0; s < n; s += SAMPLES) {
            Floats<LANES> sums[OUTS][SAMPLES] = {};
            for (int v = 0; v < WIDTH; v += LANES) {
                Floats<LANES> w[OUTS];
                SDFEEL_UNROLL for (int k = 0; k < OUTS; k++) w[k] = load<LANES>(weights[o + k] + v);
                SDFEEL_UNROLL for (int t = 0; t < SAMPLES; t++) {
                    const Floats<LANES> in = load<LANES>(x[s + t] + v);
                    SDFEEL_UNROLL for (int k = 0; k < OUTS; k++) sums[k][t] += w[k] * in;
                }
            }
            SDFEEL_UNROLL for (int t = 0; t < SAMPLES; t++) {
                SDFEEL_UNROLL for (int k = 0; k < OUTS; k++)
                    if (s + t < n) finish<TRAIN>(s + t, o + k, sum(sums[k][t]) + bias[o + k], next);
            }
        }
    }

    // ReLU and dropout, remembering by which number the gradient is to be multiplied.
    template <bool TRAIN, class Next> SDFEEL_INLINE void finish(int s, int o, float z, Next &next) {
        float kept = TRAIN && Drop::active ? multipliers[s * OUT + o] : 1.0f;
        if (L::relu && z <= 0) kept = 0; // a NaN goes on, so that divergence is seen
        if (TRAIN && MASKED) multipliers[s * OUT + o] = kept;
        next.input(s)[o] = kept * z;
    }

    // dx += d * w, then w += d * x, for OUTS rows of the weights.
    template <int OUTS> SDFEEL_INLINE void both(int o, int n, const Update &update) {
        for (int v = 0; v < WIDTH; v += LANES) {
            Floats<LANES> w[OUTS], change[OUTS];
            SDFEEL_UNROLL for (int k = 0; k < OUTS; k++) {
                w[k] = load<LANES>(weights[o + k] + v);
                change[k] = Floats<LANES>{};
            }
            for (int s = 0; s < n; s++) {
                const Floats<LANES> in = load<LANES>(x[s] + v);
                Floats<LANES> flow = load<LANES>(dx[s] + v), other = {};
                SDFEEL_UNROLL for (int k = 0; k < OUTS; k++) {
                    const Floats<LANES> g = all<LANES>(d[s][o + k]);
                    (k % 2 ? other : flow) += g * w[k]; // two chains: half the waiting
                    change[k] += g * in;
                }
                store<LANES>(dx[s] + v, flow + other);
            }
            SDFEEL_UNROLL for (int k = 0; k < OUTS; k++)
                update.template operator()<LANES>(weights[o + k] + v, speed(o + k, v), change[k]);
        }
    }

    // w += d * x alone, for a layer before which nothing learns.
    template <int OUTS> SDFEEL_INLINE void change_rows(int o, int n, const Update &update) {
        int v = 0;
        for (; v + CHANGE_VECTORS <= VECTORS; v += CHANGE_VECTORS)
            change_tile<OUTS, CHANGE_VECTORS>(o, v * LANES, n, update);
        if constexpr (VECTORS % CHANGE_VECTORS)
            change_tile<OUTS, VECTORS % CHANGE_VECTORS>(o, v * LANES, n, update);
    }
    template <int OUTS, int WIDE>
    SDFEEL_INLINE void change_tile(int o, int v, int n, const Update &update) {
        Floats<LANES> change[OUTS][WIDE] = {};
        for (int s = 0; s < n; s++) {
            Floats<LANES> in[WIDE];
            SDFEEL_UNROLL for (int j = 0; j < WIDE; j++) in[j] = load<LANES>(x[s] + v + j * LANES);
            SDFEEL_UNROLL for (int k = 0; k < OUTS; k++) {
                const Floats<LANES> g = all<LANES>(d[s][o + k]);
                SDFEEL_UNROLL for (int j = 0; j < WIDE; j++) change[k][j] += g * in[j];
            }
        }
        SDFEEL_UNROLL for (int k = 0; k < OUTS; k++) {
            SDFEEL_UNROLL for (int j = 0; j < WIDE; j++) {
                const int place = v + j * LANES;
                update.template operator()<LANES>(weights[o + k] + place, speed(o + k, place),
                                                  change[k][j]);
            }
        }
    }

    void change_bias(int n, const Update &update) {
        for (int o = 0; o < OUT_WIDTH; o += LANES) {
            Floats<LANES> change = {};
            for (int s = 0; s < n; s++) change += load<LANES>(d[s] + o);
            update.template operator()<LANES>(bias + o, bias_velocity.at(o), change);
        }
    }

    SDFEEL_INLINE float *speed(int o, int v) { return velocity.at(long(o) * STRIDE + v); }
};

} // namespace sdfeel
