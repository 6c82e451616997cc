// The end of a chain: softmax and cross-entropy.
#pragma once

#include "exponential.hpp"

namespace sdfeel {

template <int CLASSES, int BATCH> struct CrossEntropy {
    static constexpr int COUNT = CLASSES, WIDTH = round_up(CLASSES, LANES);
    static constexpr int PADDED = round_up(CLASSES, AT_ONCE);
    static constexpr bool CONTIGUOUS = true;
    static constexpr int IN_PLANE = 0, IN_ROW = 0;
    alignas(64) float scores[BATCH][WIDTH], gradients[BATCH][WIDTH];
    float over_read[ORDER]; // a convolution reads gradients by whole vectors

    float *input(int s) { return scores[s]; }
    const float *input_gradient(int s) { return gradients[s]; }

    // (softmax - target) * scale; `scale` is -learning rate / batch size.
    void differentiate(int s, int target, float scale) {
        const float *z = scores[s];
        float *d = gradients[s], top = z[0], total = 0;
        for (int o = 1; o < CLASSES; o++) top = z[o] > top ? z[o] : top;
        double powers[PADDED] = {};
        for (int o = 0; o < CLASSES; o++) powers[o] = z[o] - top;
        for (int o = 0; o < CLASSES; o += AT_ONCE) exponentials<FOR_FLOATS>(powers + o, powers + o);
        for (int o = 0; o < CLASSES; o++) total += d[o] = float(powers[o]);
        for (int o = 0; o < CLASSES; o++) d[o] = (d[o] / total - float(o == target)) * scale;
    }

    double loss(int s, int target) const {
        const float *z = scores[s];
        double top = z[0], total = 0, powers[PADDED] = {};
        for (int o = 1; o < CLASSES; o++) top = z[o] > top ? z[o] : top;
        for (int o = 0; o < CLASSES; o++) powers[o] = z[o] - top;
        for (int o = 0; o < CLASSES; o += AT_ONCE) exponentials<FOR_DOUBLES>(powers + o, powers + o);
        for (int o = 0; o < CLASSES; o++) total += powers[o];
        return log_double(total) + top - z[target];
    }

    // The first of the largest scores; a NaN counts as the largest, as in torch.
    int predicted(int s) const {
        const float *z = scores[s];
        int best = 0;
        for (int o = 1; o < CLASSES; o++)
            if (z[o] > z[best] || (z[o] != z[o] && z[best] == z[best])) best = o;
        return best;
    }
};

} // namespace sdfeel
