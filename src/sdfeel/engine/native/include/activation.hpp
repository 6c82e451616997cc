// What follows the sums of a linear layer: bias, ReLU, dropout; and the same backwards.
#pragma once

#include "dropout.hpp"
#include "vectors.hpp"

namespace sdfeel {

// `L` gives out, relu and Drop.
template <class L, int BATCH> struct Activation {
    static constexpr int OUT = L::out;
    using Drop = typename L::Drop;
    static constexpr bool MASKED = L::relu || Drop::active;
    // One for each output of each sample: dropout's, and 0 where ReLU has stopped it.
    float multipliers[MASKED ? BATCH * OUT : 1];

    void draw(const Address &at, int n) {
        if constexpr (Drop::active) Drop::fill(at, long(n) * OUT, multipliers);
    }

    // From the sums z of n samples, `stride` floats apart, to the input of the next stage.
    template <bool TRAIN, class Next>
    void apply(int n, const float *z, int stride, const float *bias, Next &next) {
        for (int s = 0; s < n; s++, z += stride) {
            float *to = next.input(s);
            for (int o = 0; o < OUT; o++) {
                const float value = z[o] + bias[o];
                float kept = TRAIN && Drop::active ? multipliers[s * OUT + o] : 1.0f;
                if (L::relu && value <= 0) kept = 0; // a NaN goes on, so that divergence is seen
                if (TRAIN && MASKED) multipliers[s * OUT + o] = kept;
                to[o] = kept * value;
            }
        }
    }

    // The gradients of the sums, from those of the next stage's input.
    template <class Next> void gradient(int n, Next &next, float *d, int stride) {
        for (int s = 0; s < n; s++, d += stride) {
            const float *from = next.input_gradient(s);
            for (int o = 0; o < OUT; o++)
                d[o] = MASKED ? from[o] * multipliers[s * OUT + o] : from[o];
        }
    }
};

} // namespace sdfeel
