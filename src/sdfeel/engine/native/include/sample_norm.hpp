// Normalisation of each example on its own: LayerNorm over all of it, GroupNorm over groups of
// channels.
//
// Sums are chains in double, example by example.
#pragma once

#include "pointwise.hpp"

namespace sdfeel {

// `L` gives channels, height, width, groups, each (numbers of a plane that share a weight), weight,
// bias (places in the row, -1: none), sends_gradient and epsilon.
template <class L, int BATCH, class Update>
struct SampleNorm : Planes<L::channels, L::height, L::width, BATCH> {
    using Base = Planes<L::channels, L::height, L::width, BATCH>;
    using Base::dx, Base::SIZE, Base::x;
    static constexpr bool AFFINE = L::weight >= 0, BIASED = L::bias >= 0;
    static constexpr int GROUP = SIZE / L::groups, COUNT = SIZE / L::each;
    static constexpr int64_t PARAMETERS = (AFFINE + BIASED) * int64_t(COUNT);

    float weights[COUNT], bias[COUNT];
    float normal[BATCH][SIZE]; // the inputs with mean 0 and variance 1
    double deviation[BATCH][L::groups]; // inverted
    double changes[COUNT], bias_changes[COUNT];
    typename Update::template Velocity<COUNT> velocity, bias_velocity;

    void read(const float *row) {
        for (int i = 0; i < COUNT; i++) {
            weights[i] = AFFINE ? row[L::weight + i] : 1;
            bias[i] = BIASED ? row[L::bias + i] : 0;
        }
        velocity.forget();
        bias_velocity.forget();
    }
    // What was read is a shift, not a model.
    void take_shift(float rate) {
        velocity.keep(weights, rate);
        bias_velocity.keep(bias, rate);
    }
    void write(float *row) const {
        if (AFFINE) memcpy(row + L::weight, weights, sizeof weights);
        if (BIASED) memcpy(row + L::bias, bias, sizeof bias);
    }

    template <bool TRAIN, class Next> SDFEEL_NOINLINE void forward(int n, Next &next) {
        for (int s = 0; s < n; s++) {
            for (int g = 0; g < L::groups; g++) {
                const float *own = x[s] + g * GROUP;
                double total = 0, squares = 0;
                for (int e = 0; e < GROUP; e++) total += double(own[e]);
                const double mean = total / GROUP;
                for (int e = 0; e < GROUP; e++)
                    squares = fused(own[e] - mean, own[e] - mean, squares);
                deviation[s][g] = 1 / __builtin_sqrt(squares / GROUP + double(L::epsilon));
                for (int e = 0; e < GROUP; e++)
                    normal[s][g * GROUP + e] = float((own[e] - mean) * deviation[s][g]);
            }
            for (int c = 0; c < L::channels; c++)
                for (int y = 0; y < L::height; y++)
                    for (int i = 0; i < L::width; i++) {
                        const int e = (c * L::height + y) * L::width + i;
                        next.input(s)[place<Next, L::height, L::width>(c, y, i)] =
                            fused(normal[s][e], weights[e / L::each], bias[e / L::each]);
                    }
        }
    }
    template <class Next> SDFEEL_NOINLINE void backward(int n, Next &next, const Rule &rule) {
        memset(changes, 0, sizeof changes);
        memset(bias_changes, 0, sizeof bias_changes);
        for (int s = 0; s < n; s++) {
            const float *from = next.input_gradient(s);
            for (int e = 0; e < SIZE; e++) {
                const int i = e / L::each;
                changes[i] = fused(double(from[e]), double(normal[s][e]), changes[i]);
                bias_changes[i] += double(from[e]);
            }
            if (L::sends_gradient)
                for (int g = 0; g < L::groups; g++) send(s, g, from);
        }
        const Update update(rule);
        for (int i = 0; i < COUNT; i++) {
            if (AFFINE) update.one(weights + i, velocity.at(i), float(changes[i]));
            if (BIASED) update.one(bias + i, bias_velocity.at(i), float(bias_changes[i]));
        }
    }

  private:
    // The group's mean and deviation depend on every input, too.
    void send(int s, int g, const float *from) {
        double total = 0, along = 0;
        for (int e = g * GROUP; e < (g + 1) * GROUP; e++) {
            const double flow = double(from[e]) * double(weights[e / L::each]);
            total += flow;
            along = fused(flow, double(normal[s][e]), along);
        }
        total /= GROUP;
        along /= GROUP;
        for (int e = g * GROUP; e < (g + 1) * GROUP; e++) {
            const double flow = double(from[e]) * double(weights[e / L::each]);
            dx[s][e] = float((flow - total - normal[s][e] * along) * deviation[s][g]);
        }
    }
};

} // namespace sdfeel
