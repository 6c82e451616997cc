// Dropout masks by address, as engine/dropout.py defines them.
#pragma once

#include "philox.hpp"
#include "vectors.hpp"

namespace sdfeel {

// A layer without dropout.
struct NoDropout {
    static constexpr bool active = false, channels = false;
    static void fill(const Address &, int64_t, float *) {}
};

// `Layer` gives `number`, `channels`, `threshold` (a word below it drops) and `scale`.
template <class Layer> struct Dropout {
    static constexpr bool active = true, channels = Layer::channels;

    // One multiplier for each of `count` elements of the batch, in memory order: 0 or `scale`.
    static void fill(const Address &at, int64_t count, float *multipliers) {
        uint64_t words[4];
        for (int64_t e = 0; e < count; e += 4) {
            philox(at, Layer::number, uint64_t(e / 4) + 1, words);
            const int valid = count - e < 4 ? int(count - e) : 4;
            for (int i = 0; i < valid; i++) {
                // p = 1 drops everything: its scale is 0. No branch, which the CPU could not guess.
                const float either[] = {0.0f, Layer::scale};
                multipliers[e + i] = either[words[i] >= Layer::threshold];
            }
        }
    }
};

} // namespace sdfeel
