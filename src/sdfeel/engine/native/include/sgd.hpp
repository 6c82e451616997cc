// The optimiser: w := w + change, with momentum and weight decay where the task has them.
//
// Everything called a "change" is a gradient already multiplied by -learning rate: the loss scales
// its own gradient once, and no other stage multiplies again. torch's
//     buffer = momentum * buffer + (gradient + decay * w);  w -= rate * buffer
// is, with velocity = -rate * buffer, what `moved` does; the learning rate is constant in a task.
#pragma once

#include "vectors.hpp"

namespace sdfeel {

struct Rule {
    float rate, momentum, decay;
};

// The weights of one stage are updated by this rule. Without momentum and decay there is no
// velocity to keep, so that the plain case pays nothing.
template <bool MOMENTUM> struct Step;

template <> struct Step<false> {
    template <int COUNT> struct Velocity {
        void forget() {}
        float *at(long) { return nullptr; }
    };
    explicit Step(const Rule &) {}

    template <int N> SDFEEL_INLINE void operator()(float *w, float *, Floats<N> change) const {
        store<N>(w, load<N>(w) + change);
    }
    SDFEEL_INLINE void one(float *w, float *, float change) const { *w += change; }
};

template <> struct Step<true> {
    template <int COUNT> struct Velocity {
        alignas(64) float values[COUNT];
        void forget() { std::memset(values, 0, sizeof values); }
        float *at(long place) { return values + place; }
    };
    float momentum, shrink;
    explicit Step(const Rule &rule) : momentum(rule.momentum), shrink(rule.rate * rule.decay) {}

    template <int N> SDFEEL_INLINE void operator()(float *w, float *v, Floats<N> change) const {
        const Floats<N> old = load<N>(w);
        const Floats<N> moved =
            all<N>(momentum) * load<N>(v) + (change - all<N>(shrink) * old);
        store<N>(v, moved);
        store<N>(w, old + moved);
    }
    SDFEEL_INLINE void one(float *w, float *v, float change) const {
        *v = momentum * *v + (change - shrink * *w);
        *w += *v;
    }
};

// Apply `count` changes (a multiple of LANES).
template <class S> inline void apply(const S &step, float *w, float *v, const float *changes,
                                     int count) {
    for (int i = 0; i < count; i += LANES)
        step.template operator()<LANES>(w + i, v ? v + i : nullptr, load<LANES>(changes + i));
}

} // namespace sdfeel
