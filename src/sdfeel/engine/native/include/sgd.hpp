// The optimiser: w := w + change, with momentum, weight decay and shifts where the task has them.
//
// Everything called a "change" is a gradient already multiplied by -learning rate: the loss scales
// its own gradient once, and no other stage multiplies again. torch's
//     buffer = momentum * buffer + (gradient + decay * w);  w -= rate * buffer
// is, with velocity = -rate * buffer, what `moved` does; the learning rate is constant in a task.
// NESTEROV looks one step ahead: w -= rate * ((gradient + decay * w) + momentum * buffer).
// A shift is added to the gradient before all this, so a change has -rate * shift added to it.
#pragma once

#include "vectors.hpp"

namespace sdfeel {

// What a caller asks for; the last four are Adam's.
struct Asked {
    float rate, momentum, decay;
    double first, second, epsilon, own_decay;
};

// What one step does.
struct Rule {
    float rate; // a change is a gradient times minus this
    float momentum, decay;
    float kept, added, size, root, epsilon, left; // see adam.hpp
};

// The weights of one stage are updated by this rule. Without momentum and decay there is no
// velocity to keep, and without SHIFT no shift, so that the plain case pays nothing.
template <bool MOMENTUM, bool SHIFT, bool NESTEROV = false> struct Step {
    static constexpr bool DENSE = MOMENTUM || SHIFT; // weights without a gradient move, too
    class Pace { // the rules of one step after another
      public:
        explicit Pace(const Asked &asked)
            : rule{asked.rate, asked.momentum, asked.decay, 0, 0, 0, 0, 0, 0} {}
        float rate() const { return rule.rate; }
        const Rule &next() const { return rule; }

      private:
        Rule rule;
    };
    struct Place { // of a weight; null where nothing is kept
        float *velocity;
        const float *shift;
    };
    // What is kept for COUNT weights, in their order.
    template <int COUNT> struct Velocity {
        alignas(64) float values[MOMENTUM ? COUNT : 1], shifts[SHIFT ? COUNT : 1];
        void forget() {
            if (MOMENTUM) memset(values, 0, sizeof values);
        }
        // `shift` lies where the weights will: COUNT numbers.
        void keep(const float *shift, float rate) {
            if constexpr (SHIFT) {
                int i = 0;
                for (; i + LANES <= COUNT; i += LANES)
                    store<LANES>(shifts + i, all<LANES>(-rate) * load<LANES>(shift + i));
                for (; i < COUNT; i++) shifts[i] = -rate * shift[i];
            }
        }
        SDFEEL_INLINE Place at(long place) {
            return {MOMENTUM ? values + place : nullptr, SHIFT ? shifts + place : nullptr};
        }
    };
    float momentum, shrink;
    explicit Step(const Rule &rule) : momentum(rule.momentum), shrink(rule.rate * rule.decay) {}

    template <int N> SDFEEL_INLINE void operator()(float *w, Place at, Floats<N> change) const {
        operator()<N>(w, at, change, w);
    }
    // The weights are at `from` before, and at `w` afterwards.
    template <int N>
    SDFEEL_INLINE void operator()(float *w, Place at, Floats<N> change, const float *from) const {
        if constexpr (SHIFT) change = change + load<N>(at.shift);
        if constexpr (MOMENTUM) {
            const Floats<N> old = load<N>(from);
            change = fused<N>(all<N>(-shrink), old, change);
            const Floats<N> moved = fused<N>(all<N>(momentum), load<N>(at.velocity), change);
            store<N>(at.velocity, moved);
            if constexpr (NESTEROV) store<N>(w, old + fused<N>(all<N>(momentum), moved, change));
            else store<N>(w, old + moved);
        } else {
            store<N>(w, load<N>(from) + change);
        }
    }
    SDFEEL_INLINE void one(float *w, Place at, float change) const {
        if constexpr (SHIFT) change = change + *at.shift;
        if constexpr (MOMENTUM) {
            const float own = fused(-shrink, *w, change);
            change = fused(momentum, *at.velocity, own);
            *at.velocity = change;
            if constexpr (NESTEROV) change = fused(momentum, change, own);
        }
        *w += change;
    }
};

// Apply `count` changes (a multiple of LANES).
template <class S, class Kept>
inline void apply(const S &step, float *w, Kept &kept, const float *changes, int count) {
    for (int i = 0; i < count; i += LANES)
        step.template operator()<LANES>(w + i, kept.at(i), load<LANES>(changes + i));
}

} // namespace sdfeel
