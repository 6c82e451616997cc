// A linear layer with the ReLU and the dropout that follow it.
//
// The weights stay in rows of inputs, as torch has them. The backward pass reads and writes them
// once: what flows back is taken from the old weights in the same sweep that updates them.
#pragma once

#include "activation.hpp"
#include "nonzeros.hpp"
#include "sgd.hpp"
#include "transpose.hpp"
#include "vectors.hpp"

namespace sdfeel {

// How many samples share one load of a weight: so that few are left over, and sums fit in
// registers.
constexpr int sample_tile(int batch) {
    int best = 1, waste = 1 << 30;
    constexpr int TILES[] = {5, 4, 6, 3, 2, 1};
    for (int tile : TILES) {
        const int lost = 8 * (round_up(batch, tile) - batch) + (tile < 4 ? 8 / tile : 0);
        if (lost < waste) best = tile, waste = lost;
    }
    return best;
}

// `L` gives in, out, weight, bias (places in the row, bias -1: none), relu, sends_gradient, Drop.
template <class L, int BATCH, class Update> struct Linear {
    static constexpr int IN = L::in, OUT = L::out;
    static constexpr int64_t PARAMETERS = int64_t(IN) * OUT + (L::bias >= 0 ? OUT : 0);
    static constexpr bool CONTIGUOUS = true; // planes of the producer lie one after another
    static constexpr int IN_PLANE = 0, IN_ROW = 0;

    static constexpr int WIDTH = round_up(IN, ORDER), VECTORS = WIDTH / LANES;
    // Rows a multiple of a kilobyte apart would fall on the same few lines of the first cache.
    static constexpr int STRIDE = WIDTH % 256 == 0 ? WIDTH + 16 : WIDTH;
    static constexpr int OUT_WIDTH = round_up(OUT, LANES);
    static constexpr int SAMPLES = sample_tile(BATCH), ROWS = round_up(BATCH, SAMPLES);
    static constexpr int FORWARD_OUTS = most(1, least(4, ACCUMULATORS / SAMPLES));
    static constexpr int CHANGE_OUTS = LANES == 16 ? 6 : 4;
    static constexpr int CHANGE_VECTORS = most(1, ACCUMULATORS / CHANGE_OUTS);
    static constexpr int FUSED_OUTS = ACCUMULATORS > 20 ? 8 : 4;
    // Inputs are taken in parts that stay in the first cache, for all samples, while the weights
    // pass by; the backward pass needs them twice, as inputs and as gradients.
    static constexpr int PART_BYTES = PARTS > 1 ? 20000 : 28000;
    static constexpr int FORWARD_PART = most(64, PART_BYTES / (4 * ROWS) / ORDER * ORDER);
    static constexpr bool IN_PARTS = WIDTH > FORWARD_PART;
    static constexpr int BACKWARD_PART = most(64, 20000 / (8 * BATCH) / LANES * LANES);
    // What ReLU or dropout has stopped has no gradient, and is skipped. A row is summed up in
    // registers, in as few pieces as possible.
    static constexpr bool SKIPS = L::sends_gradient && Activation<L, BATCH>::MASKED;
    static constexpr int PIECES = divide_up(VECTORS, ACCUMULATORS);
    static constexpr int PIECE = divide_up(VECTORS, PIECES);

    alignas(64) float x[ROWS][STRIDE];
    alignas(64) float weights[OUT][STRIDE];
    alignas(64) float bias[OUT_WIDTH];
    alignas(64) float z[ROWS][OUT_WIDTH];
    alignas(64) float lanes[IN_PARTS ? ROWS : 1][IN_PARTS ? OUT : 1][ORDER]; // of the sums z
    alignas(64) float d[BATCH][OUT_WIDTH];
    alignas(64) float dx[L::sends_gradient ? BATCH : 1][STRIDE];
    float over_read[ORDER];
    Activation<L, BATCH> activation;
    typename Update::template Velocity<OUT * STRIDE> velocity;
    typename Update::template Velocity<OUT_WIDTH> bias_velocity;

    float *input(int s) { return x[s]; }
    const float *input_gradient(int s) { return dx[s]; }
    void fill(int s, const float *example) { memcpy(x[s], example, IN * 4); }

    void read(const float *row) {
        for (int o = 0; o < OUT; o++) {
            memcpy(weights[o], row + L::weight + o * IN, IN * 4);
            // The spare lanes took part in the last client's sums: if it diverged, they are NaN.
            memset(weights[o] + IN, 0, (WIDTH - IN) * 4);
        }
        if (L::bias >= 0) memcpy(bias, row + L::bias, OUT * 4);
        velocity.forget();
        bias_velocity.forget();
    }
    void write(float *row) const {
        for (int o = 0; o < OUT; o++) memcpy(row + L::weight + o * IN, weights[o], IN * 4);
        if (L::bias >= 0) memcpy(row + L::bias, bias, OUT * 4);
    }
    // What was read is a shift, not a model.
    void take_shift(float rate) {
        velocity.keep(weights[0], rate);
        bias_velocity.keep(bias, rate);
    }
    void pack() {}
    void draw(const Address &at, int n) { activation.draw(at, n); }

    template <bool TRAIN, class Next> SDFEEL_NOINLINE void forward(int n, Next &next) {
        for (int i = 0; i < WIDTH; i += FORWARD_PART) {
            const int end = least(WIDTH, i + FORWARD_PART);
            int o = 0;
            for (; o + FORWARD_OUTS <= OUT; o += FORWARD_OUTS) sums<FORWARD_OUTS>(o, n, i, end);
            if constexpr (OUT % FORWARD_OUTS) sums<OUT % FORWARD_OUTS>(o, n, i, end);
        }
        activation.template apply<TRAIN>(n, z[0], OUT_WIDTH, bias, next);
    }

    template <class Next> SDFEEL_NOINLINE void backward(int n, Next &next, const Rule &rule) {
        activation.gradient(n, next, d[0], OUT_WIDTH);
        const Update update(rule);
        if constexpr (SKIPS) {
            for (int s = 0; s < n; s++) flow_back(s);
            for (int o = 0; o < OUT; o += 4) change_four(o, n, update);
        } else if constexpr (L::sends_gradient) {
            for (int s = 0; s < n; s++) memset(dx[s], 0, WIDTH * 4);
            for (int i = 0; i < WIDTH; i += BACKWARD_PART) {
                const int end = least(WIDTH, i + BACKWARD_PART);
                int o = 0;
                for (; o + FUSED_OUTS <= OUT; o += FUSED_OUTS)
                    both<FUSED_OUTS>(o, n, i, end, update);
                if constexpr (OUT % FUSED_OUTS) both<OUT % FUSED_OUTS>(o, n, i, end, update);
            }
        } else {
            int o = 0;
            for (; o + CHANGE_OUTS <= OUT; o += CHANGE_OUTS) change_rows<CHANGE_OUTS>(o, n, update);
            if constexpr (OUT % CHANGE_OUTS) change_rows<OUT % CHANGE_OUTS>(o, n, update);
        }
        if constexpr (L::bias >= 0) change_bias(n, update);
    }

  private:
    // Add to OUTS sums of all samples what inputs `begin` to `end` give: a tile of OUTS x SAMPLES
    // in registers. Lane l of a sum is the chain of inputs l, l + ORDER, ...; if the CPU has fewer
    // lanes, it takes some of them at a time.
    template <int OUTS> SDFEEL_INLINE void sums(int o, int n, int begin, int end) {
        for (int s = 0; s < n; s += SAMPLES) {
            Floats<LANES> all_lanes[OUTS][SAMPLES][PARTS];
            for (int p = 0; p < PARTS; p++) {
                Floats<LANES> tile[OUTS][SAMPLES] = {};
                if (IN_PARTS && begin)
                    each<OUTS>([&](int k, int t) {
                        tile[k][t] = load<LANES>(lanes[s + t][o + k] + p * LANES);
                    });
                for (int v = begin + p * LANES; v < end; v += ORDER) {
                    Floats<LANES> w[OUTS];
                    SDFEEL_UNROLL for (int k = 0; k < OUTS; k++)
                        w[k] = load<LANES>(weights[o + k] + v);
                    SDFEEL_UNROLL for (int t = 0; t < SAMPLES; t++) {
                        const Floats<LANES> in = load<LANES>(x[s + t] + v);
                        SDFEEL_UNROLL for (int k = 0; k < OUTS; k++)
                            tile[k][t] = fused<LANES>(w[k], in, tile[k][t]);
                    }
                }
                if (IN_PARTS && end < WIDTH)
                    each<OUTS>([&](int k, int t) {
                        store<LANES>(lanes[s + t][o + k] + p * LANES, tile[k][t]);
                    });
                else each<OUTS>([&](int k, int t) { all_lanes[k][t][p] = tile[k][t]; });
            }
            if (end == WIDTH)
                each<OUTS>([&](int k, int t) { z[s + t][o + k] = sum(all_lanes[k][t]); });
        }
    }
    // act(k, t) for all of a tile.
    template <int OUTS, class Act> static SDFEEL_INLINE void each(const Act &act) {
        SDFEEL_UNROLL for (int t = 0; t < SAMPLES; t++)
            SDFEEL_UNROLL for (int k = 0; k < OUTS; k++) act(k, t);
    }

    // dx += d * w, then w += d * x, for OUTS rows of the weights.
    template <int OUTS>
    SDFEEL_INLINE void both(int o, int n, int begin, int end, const Update &update) {
        for (int v = begin; v < end; v += LANES) {
            Floats<LANES> w[OUTS], change[OUTS];
            SDFEEL_UNROLL for (int k = 0; k < OUTS; k++) {
                w[k] = load<LANES>(weights[o + k] + v);
                change[k] = Floats<LANES>{};
            }
            for (int s = 0; s < n; s++) {
                const Floats<LANES> in = load<LANES>(x[s] + v);
                Floats<LANES> flow = load<LANES>(dx[s] + v); // one chain through all outputs
                SDFEEL_UNROLL for (int k = 0; k < OUTS; k++) {
                    const Floats<LANES> g = all<LANES>(d[s][o + k]);
                    flow = fused<LANES>(g, w[k], flow);
                    change[k] = fused<LANES>(g, in, change[k]);
                }
                store<LANES>(dx[s] + v, flow);
            }
            SDFEEL_UNROLL for (int k = 0; k < OUTS; k++)
                update.template operator()<LANES>(weights[o + k] + v, speed(o + k, v), change[k]);
        }
    }

    // The same, in two steps: dx = d * w, sample by sample.
    SDFEEL_INLINE void flow_back(int s) {
        NotZero<OUT> alive;
        alive.find(d[s]);
        in_pieces([&](auto wide, int v) {
            constexpr int WIDE = decltype(wide)::value;
            Floats<LANES> flow[WIDE] = {};
            add_rows<WIDE>(alive, weights, v, flow);
            SDFEEL_UNROLL for (int j = 0; j < WIDE; j++) store<LANES>(dx[s] + v + j * LANES, flow[j]);
        });
    }
    // Then w += d * x, output by output.
    SDFEEL_INLINE void change_four(int o, int n, const Update &update) {
        alignas(64) float by_output[4][round_up(BATCH, LANES)] = {};
        for (int s = 0; s < n; s++)
            SDFEEL_UNROLL for (int k = 0; k < 4; k++) by_output[k][s] = d[s][o + k];
        for (int k = 0; k < least(4, OUT - o); k++) {
            NotZero<BATCH> alive;
            alive.find(by_output[k]);
            in_pieces([&](auto wide, int v) {
                constexpr int WIDE = decltype(wide)::value;
                Floats<LANES> change[WIDE] = {};
                add_rows<WIDE>(alive, x, v, change);
                SDFEEL_UNROLL for (int j = 0; j < WIDE; j++) {
                    const int place = v + j * LANES;
                    update.template operator()<LANES>(weights[o + k] + place, speed(o + k, place),
                                                      change[j]);
                }
            });
        }
    }
    template <int WIDE, class Alive>
    static SDFEEL_INLINE void add_rows(const Alive &alive, const float (*rows)[STRIDE], int v,
                                       Floats<LANES> (&sums)[WIDE]) {
        for (int i = 0; i < alive.count; i++) {
            const Floats<LANES> g = all<LANES>(alive.values[i]);
            const float *from = rows[alive.places[i]] + v;
            SDFEEL_UNROLL for (int j = 0; j < WIDE; j++)
                sums[j] = fused<LANES>(g, load<LANES>(from + j * LANES), sums[j]);
        }
    }
    // act(vectors, place) for the pieces of a row.
    template <class Act> static SDFEEL_INLINE void in_pieces(const Act &act) {
        int v = 0;
        for (; v + PIECE <= VECTORS; v += PIECE) act(Number<PIECE>(), v * LANES);
        if constexpr (VECTORS % PIECE) act(Number<VECTORS % PIECE>(), v * LANES);
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
                SDFEEL_UNROLL for (int j = 0; j < WIDE; j++)
                    change[k][j] = fused<LANES>(g, in[j], change[k][j]);
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

    SDFEEL_INLINE auto speed(int o, int v) { return velocity.at(long(o) * STRIDE + v); }
};

} // namespace sdfeel
