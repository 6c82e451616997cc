// A linear layer before which nothing learns, with the ReLU and the dropout that follow it.
//
// Nothing flows further back, so the weights can lie in rows of outputs: neighbouring outputs are
// neighbouring lanes, and no sum runs across lanes.
//
// The weights are the largest thing such models have, often larger than the second cache, and
// fetching them takes as long as using them. The next batch does not depend on them, so if it is
// already known, one walk does two things: slice by slice, update the weights with this batch and
// sum up the outputs of the next one, while the slice is near. For the same reason a client's first
// step reads the weights where its start has them, which other clients share, and only its update
// writes them here.
#pragma once

#include "activation.hpp"
#include "linear.hpp"
#include "transpose.hpp"

namespace sdfeel {

// `n` vectors are cut into tiles of `a` broadcast numbers x `b` vectors: the cheapest `b`.
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

template <class L, int BATCH, class Update> struct FirstLinear {
    static constexpr int IN = L::in, OUT = L::out;
    static constexpr int64_t PARAMETERS = int64_t(IN) * OUT + (L::bias >= 0 ? OUT : 0);
    static constexpr bool CONTIGUOUS = true;
    static constexpr int IN_PLANE = 0, IN_ROW = 0;

    static constexpr int VECTORS = divide_up(OUT, LANES), WIDTH = VECTORS * LANES;
    // Rows a multiple of a kilobyte apart would fall on the same few lines of the first cache.
    static constexpr int STRIDE = WIDTH % 256 == 0 ? WIDTH + 16 : WIDTH;
    static constexpr int IN_STRIDE = round_up(IN, 16) % 256 == 0 ? IN + 16 : round_up(IN, 16);
    static constexpr int SAMPLES = sample_tile(BATCH), ROWS = round_up(BATCH, SAMPLES);
    static constexpr int WIDE = vectors_of_tile(SAMPLES, VECTORS);
    static constexpr int INPUTS = LANES == 16 ? 6 : 4; // of a tile of changes
    static constexpr int CHANGE_WIDE = vectors_of_tile(INPUTS, VECTORS);
    // Inputs whose weights stay in the first cache while all samples pass over them.
    static constexpr int SLICE = round_up(most(8, 20000 / (4 * STRIDE)), INPUTS);
    // The last slice is always copied: vectors read beyond its last row, where a start may end.
    static constexpr int LAST = (IN - 1) / SLICE * SLICE;

    alignas(64) float x[2][ROWS][IN_STRIDE]; // this batch and the next, in turn
    int now;                                 // which of them is this batch
    bool next_known, summed;                 // the next batch is there; z holds its sums
    const float *start;                      // if not null, the weights are there, rows of OUT
    alignas(64) float weights[IN][STRIDE];
    alignas(64) float bias[WIDTH];
    alignas(64) float z[ROWS][WIDTH];
    alignas(64) float d[BATCH][WIDTH];
    Activation<L, BATCH> activation;
    typename Update::template Velocity<IN * STRIDE> velocity;
    typename Update::template Velocity<WIDTH> bias_velocity;

    float *input(int s) { return x[now][s]; }
    void fill(int s, const float *example) { memcpy(x[now][s], example, IN * 4); }
    void fill_next(int s, const float *example) {
        memcpy(x[1 - now][s], example, IN * 4);
        next_known = true;
    }

    void read(const float *row) {
        transpose<true>(row + L::weight, IN, weights[0], STRIDE, OUT, IN);
        if (L::bias >= 0) memcpy(bias, row + L::bias, OUT * 4);
        start = nullptr;
        begin_anew();
    }
    void write(float *row) {
        fetch_all();
        transpose<false>(weights[0], STRIDE, row + L::weight, IN, IN, OUT);
        write_rest(row);
    }
    // The order of its own: the row's weights by inputs, not by outputs. The row must not change
    // until the first step is done.
    void read_ordered(const float *row) {
        start = row + L::weight;
        if (L::bias >= 0) memcpy(bias, row + L::bias, OUT * 4);
        begin_anew();
    }
    static constexpr int64_t FIRST_WEIGHT = L::weight, WEIGHTS = int64_t(IN) * OUT;
    void write_ordered(float *row) {
        each_row([&](int64_t place, const float *numbers, int count) {
            memcpy(row + place, numbers, size_t(count) * 4);
        });
        write_rest(row);
    }
    // act(place, numbers, count) for the weights in that order.
    template <class Act> void each_row(const Act &act) {
        fetch_all();
        for (int i = 0; i < IN; i++) act(L::weight + int64_t(i) * OUT, weights[i], OUT);
    }
    void write_rest(float *row) const {
        if (L::bias >= 0) memcpy(row + L::bias, bias, OUT * 4);
    }
    template <class T> static void order(const T *row, T *ordered) {
        transpose<true>(row + L::weight, IN, ordered + L::weight, OUT, OUT, IN);
    }
    template <class T> static void restore(const T *ordered, T *row) {
        transpose<false>(ordered + L::weight, OUT, row + L::weight, IN, IN, OUT);
    }
    // What was read is a shift, not a model.
    void take_shift(float rate) {
        velocity.keep(weights[0], rate);
        bias_velocity.keep(bias, rate);
    }
    void pack() {}
    void draw(const Address &at, int n) { activation.draw(at, n); }

    template <bool TRAIN, class Next> SDFEEL_NOINLINE void forward(int n, Next &next) {
        if (!summed) {
            for (int s = 0; s < n; s++) memset(z[s], 0, sizeof z[s]);
            if (start) fetch(LAST);
            for (int i = 0; i < IN; i += SLICE)
                if (start && i < LAST) sum_slice<OUT>(i, start, x[now], n);
                else sum_slice<STRIDE>(i, weights[0], x[now], n);
        }
        summed = false;
        activation.template apply<TRAIN>(n, z[0], WIDTH, bias, next);
    }

    template <class Next> SDFEEL_NOINLINE void backward(int n, Next &next, const Rule &rule) {
        activation.gradient(n, next, d[0], WIDTH);
        for (int s = 0; s < n; s++) memset(z[s], 0, sizeof z[s]);
        const Update update(rule);
        for (int i = 0; i < IN; i += SLICE) {
            if (start && i < LAST) change_slice<OUT>(i, start, n, update);
            else change_slice<STRIDE>(i, weights[0], n, update);
            if (next_known) sum_slice<STRIDE>(i, weights[0], x[1 - now], n);
        }
        start = nullptr;
        if constexpr (L::bias >= 0)
            for (int o = 0; o < WIDTH; o += LANES) {
                Floats<LANES> change = {};
                for (int s = 0; s < n; s++) change += load<LANES>(d[s] + o);
                update.template operator()<LANES>(bias + o, bias_velocity.at(o), change);
            }
        if (next_known) now = 1 - now;
        summed = next_known;
        next_known = false;
    }

  private:
    void begin_anew() {
        velocity.forget();
        bias_velocity.forget();
        next_known = summed = false;
    }
    void fetch(int begin) {
        for (int i = begin; i < least(IN, begin + SLICE); i++)
            memcpy(weights[i], start + long(i) * OUT, OUT * 4);
    }
    void fetch_all() {
        if (start)
            for (int i = 0; i < IN; i += SLICE) fetch(i);
        start = nullptr;
    }

    // Add to the sums of all samples what the inputs of a slice give. `from`: all weights, in rows
    // that are FAR apart; sums of spare lanes may be anything.
    template <int FAR>
    SDFEEL_NOINLINE void sum_slice(int begin, const float *from, const float (*in)[IN_STRIDE],
                                   int n) {
        int v = 0;
        for (; v + WIDE <= VECTORS; v += WIDE) sum_tile<WIDE, FAR>(v * LANES, begin, from, in, n);
        if constexpr (VECTORS % WIDE)
            sum_tile<VECTORS % WIDE, FAR>(v * LANES, begin, from, in, n);
    }
    template <int TILE, int FAR>
    SDFEEL_INLINE void sum_tile(int o, int begin, const float *from, const float (*in)[IN_STRIDE],
                                int n) {
        const int end = least(IN, begin + SLICE);
        from += o;
        // The next slice is fetched while this one works.
        for (int i = begin + SLICE; i < least(IN, end + SLICE); i++)
            SDFEEL_UNROLL for (int j = 0; j < TILE * LANES; j += 16)
                __builtin_prefetch(from + i * FAR + j);
        for (int s = 0; s < n; s += SAMPLES) {
            Floats<LANES> sums[SAMPLES][TILE];
            SDFEEL_UNROLL for (int t = 0; t < SAMPLES; t++) {
                SDFEEL_UNROLL for (int j = 0; j < TILE; j++)
                    sums[t][j] = load<LANES>(z[s + t] + o + j * LANES);
            }
            for (int i = begin; i < end; i++) {
                Floats<LANES> w[TILE];
                SDFEEL_UNROLL for (int j = 0; j < TILE; j++)
                    w[j] = load<LANES>(from + i * FAR + j * LANES);
                SDFEEL_UNROLL for (int t = 0; t < SAMPLES; t++) {
                    const Floats<LANES> value = all<LANES>(in[s + t][i]);
                    SDFEEL_UNROLL for (int j = 0; j < TILE; j++)
                        sums[t][j] = fused<LANES>(value, w[j], sums[t][j]);
                }
            }
            SDFEEL_UNROLL for (int t = 0; t < SAMPLES; t++) {
                SDFEEL_UNROLL for (int j = 0; j < TILE; j++)
                    store<LANES>(z[s + t] + o + j * LANES, sums[t][j]);
            }
        }
    }

    // w += x * d, for the inputs of a slice, whose weights are in rows of `from`.
    template <int FAR>
    SDFEEL_NOINLINE void change_slice(int begin, const float *from, int n, const Update &update) {
        const int end = least(IN, begin + SLICE);
        int i = begin;
        for (; i + INPUTS <= end; i += INPUTS) change_rows<INPUTS, FAR>(i, from, n, update);
        for (; i < end; i++) change_rows<1, FAR>(i, from, n, update);
    }
    template <int COUNT, int FAR>
    SDFEEL_INLINE void change_rows(int i, const float *from, int n, const Update &update) {
        int v = 0;
        for (; v + CHANGE_WIDE <= VECTORS; v += CHANGE_WIDE)
            change_tile<COUNT, CHANGE_WIDE, FAR>(i, v * LANES, from, n, update);
        if constexpr (VECTORS % CHANGE_WIDE)
            change_tile<COUNT, VECTORS % CHANGE_WIDE, FAR>(i, v * LANES, from, n, update);
    }
    template <int COUNT, int TILE, int FAR>
    SDFEEL_INLINE void change_tile(int i, int o, const float *from, int n, const Update &update) {
        Floats<LANES> change[COUNT][TILE] = {};
        for (int s = 0; s < n; s++) {
            Floats<LANES> g[TILE];
            SDFEEL_UNROLL for (int j = 0; j < TILE; j++) g[j] = load<LANES>(d[s] + o + j * LANES);
            SDFEEL_UNROLL for (int k = 0; k < COUNT; k++) {
                const Floats<LANES> in = all<LANES>(x[now][s][i + k]);
                SDFEEL_UNROLL for (int j = 0; j < TILE; j++)
                    change[k][j] = fused<LANES>(in, g[j], change[k][j]);
            }
        }
        SDFEEL_UNROLL for (int k = 0; k < COUNT; k++) {
            SDFEEL_UNROLL for (int j = 0; j < TILE; j++) {
                const int place = o + j * LANES;
                const auto speed = velocity.at(long(i + k) * STRIDE + place);
                update.template operator()<LANES>(weights[i + k] + place, speed, change[k][j],
                                                  from + (i + k) * FAR + place);
            }
        }
    }
};

// The better of the two for a layer: FirstLinear wastes lanes if there are few outputs. They add up
// in different orders.
template <class L, int BATCH, class Update>
using AnyLinear = Choose<!L::sends_gradient && L::out >= 2 * ORDER, FirstLinear<L, BATCH, Update>,
                         Linear<L, BATCH, Update>>;

} // namespace sdfeel
