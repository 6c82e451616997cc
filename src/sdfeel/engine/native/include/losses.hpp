// The end of a chain: softmax and cross-entropy, or the squared error.
#pragma once

#include "exponential.hpp"

namespace sdfeel {

// What losses share: the outputs of a model, and their gradients.
template <int CLASSES, int BATCH> struct Outputs {
    static constexpr int COUNT = CLASSES, WIDTH = round_up(CLASSES, LANES);
    static constexpr bool CONTIGUOUS = true;
    static constexpr int IN_PLANE = 0, IN_ROW = 0;
    alignas(64) float scores[BATCH][WIDTH], gradients[BATCH][WIDTH];
    float over_read[ORDER]; // a convolution reads gradients by whole vectors

    float *input(int s) { return scores[s]; }
    const float *input_gradient(int s) { return gradients[s]; }
};

// A target is the number of a class.
template <int CLASSES, int BATCH> struct CrossEntropy : Outputs<CLASSES, BATCH> {
    using Base = Outputs<CLASSES, BATCH>;
    using Base::gradients, Base::scores;
    using Target = int64_t;
    static constexpr int TARGETS = 1, PADDED = round_up(CLASSES, AT_ONCE);

    // (softmax - target) * scale; `scale` is -learning rate / batch size.
    void differentiate(int s, const int64_t *target, float scale) {
        const float *z = scores[s];
        float *d = gradients[s], top = z[0], total = 0;
        for (int o = 1; o < CLASSES; o++) top = z[o] > top ? z[o] : top;
        double powers[PADDED] = {};
        for (int o = 0; o < CLASSES; o++) powers[o] = z[o] - top;
        for (int o = 0; o < CLASSES; o += AT_ONCE) exponentials<FOR_FLOATS>(powers + o, powers + o);
        for (int o = 0; o < CLASSES; o++) total += d[o] = float(powers[o]);
        for (int o = 0; o < CLASSES; o++) d[o] = (d[o] / total - float(o == int(*target))) * scale;
    }

    double loss(int s, const int64_t *target) const {
        const float *z = scores[s];
        double top = z[0], total = 0, powers[PADDED] = {};
        for (int o = 1; o < CLASSES; o++) top = z[o] > top ? z[o] : top;
        for (int o = 0; o < CLASSES; o++) powers[o] = z[o] - top;
        for (int o = 0; o < CLASSES; o += AT_ONCE) exponentials<FOR_DOUBLES>(powers + o, powers + o);
        for (int o = 0; o < CLASSES; o++) total += powers[o];
        return log_double(total) + top - z[*target];
    }

    // Is the first of the largest scores the target's? A NaN counts as the largest, as in torch.
    bool right(int s, const int64_t *target) const {
        const float *z = scores[s];
        int best = 0;
        for (int o = 1; o < CLASSES; o++)
            if (z[o] > z[best] || (z[o] != z[o] && z[best] == z[best])) best = o;
        return best == int(*target);
    }
};

// The mean of the squares over a line of numbers.
template <int COUNT, int BATCH> struct SquaredError : Outputs<COUNT, BATCH> {
    using Base = Outputs<COUNT, BATCH>;
    using Base::gradients, Base::scores;
    using Target = float;
    static constexpr int TARGETS = COUNT;

    void differentiate(int s, const float *target, float scale) {
        const float factor = scale * (2.0f / COUNT);
        for (int o = 0; o < COUNT; o++) gradients[s][o] = (scores[s][o] - target[o]) * factor;
    }
    double loss(int s, const float *target) const {
        double total = 0;
        for (int o = 0; o < COUNT; o++) {
            const double off = double(scores[s][o]) - double(target[o]);
            total = fused(off, off, total);
        }
        return total / COUNT;
    }
    bool right(int, const float *) const { return false; } // nothing is a class
};

} // namespace sdfeel
