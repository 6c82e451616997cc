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
    // For each output of each sample: dropout's multiplier, or 0 where ReLU has stopped the output.
    float multipliers[MASKED ? BATCH * OUT : 1];

    void draw(const Address &at, int n) {
        if constexpr (Drop::active) Drop::fill(at, int64_t(n) * OUT, multipliers);
    }

    // From the sums z of n samples, `stride` floats apart, to the input of the next stage.
    template <bool TRAIN, class Next>
    void apply(int n, const float *z, int stride, const float *bias, Next &next) {
        for (int s = 0; s < n; s++, z += stride) {
            float *to = next.input(s);
            in_vectors<OUT>([&](auto lanes, int o) {
                constexpr int N = decltype(lanes)::value;
                float *remembered = multipliers + (MASKED ? s * OUT + o : 0);
                const Floats<N> value = load<N>(z + o) + load<N>(bias + o);
                Floats<N> kept = all<N>(1);
                if constexpr (TRAIN && Drop::active) kept = load<N>(remembered);
                // A NaN passes, so that divergence is seen.
                if constexpr (L::relu) kept = value <= Floats<N>{} ? Floats<N>{} : kept;
                if constexpr (TRAIN && MASKED) store<N>(remembered, kept);
                store<N>(to + o, kept * value);
            });
        }
    }

    // The gradients of the sums, from those of the next stage's input.
    template <class Next> void gradient(int n, Next &next, float *d, int stride) {
        for (int s = 0; s < n; s++, d += stride) {
            const float *from = next.input_gradient(s);
            in_vectors<OUT>([&](auto lanes, int o) {
                constexpr int N = decltype(lanes)::value;
                Floats<N> value = load<N>(from + o);
                if constexpr (MASKED) value *= load<N>(multipliers + s * OUT + o);
                store<N>(d + o, value);
            });
        }
    }
};

} // namespace sdfeel
