// Adam, in the place of sgd.hpp's step: w := w + size * average / (root of the squares' average).
//
// Changes are gradients times -1 here (a rule's rate is 1), so that what is kept are averages of
// the gradients themselves. Both averages begin at zero for every task; what they lack at first is
// corrected by the size of the step and by `root`, as in torch. Weight decay is a part of the
// gradient; DECOUPLED is AdamW, whose own decay multiplies each weight by `left` before the step.
// Roots and quotients are rounded once on every CPU.
#pragma once

#include "sgd.hpp"

namespace sdfeel {

template <bool SHIFT, bool DECOUPLED = false> struct Adam {
    static constexpr bool DENSE = true; // weights without a gradient move, too
    class Pace {
      public:
        explicit Pace(const Asked &own) : asked(own) {}
        float rate() const { return 1; }
        Rule next() {
            first_left *= asked.first;
            second_left *= asked.second;
            return {1,
                    float(1 - asked.first),
                    asked.decay,
                    float(asked.second),
                    float(1 - asked.second),
                    float(asked.rate / (1 - first_left)),
                    float(__builtin_sqrt(1 - second_left)),
                    float(asked.epsilon),
                    float(1 - asked.rate * asked.own_decay)};
        }

      private:
        const Asked asked;
        double first_left = 1, second_left = 1; // what the averages lack
    };
    struct Place {
        float *average, *squares;
        const float *shift;
    };
    template <int COUNT> struct Velocity {
        alignas(64) float averages[COUNT], squares[COUNT], shifts[SHIFT ? COUNT : 1];
        void forget() {
            memset(averages, 0, sizeof averages);
            memset(squares, 0, sizeof squares);
        }
        void keep(const float *shift, float rate) {
            if constexpr (SHIFT)
                for (int i = 0; i < COUNT; i++) shifts[i] = -rate * shift[i];
        }
        SDFEEL_INLINE Place at(long place) {
            return {averages + place, squares + place, SHIFT ? shifts + place : nullptr};
        }
    };
    Rule rule; // `momentum` is what a change adds to the average; `kept` and `added`: of squares
    explicit Adam(const Rule &own) : rule(own) {}

    template <int N> SDFEEL_INLINE void operator()(float *w, Place at, Floats<N> change) const {
        operator()<N>(w, at, change, w);
    }
    // The weights are at `from` before, and at `w` afterwards.
    template <int N>
    SDFEEL_INLINE void operator()(float *w, Place at, Floats<N> change, const float *from) const {
        if constexpr (SHIFT) change = change + load<N>(at.shift);
        const Floats<N> old = load<N>(from), before = load<N>(at.average);
        change = fused<N>(all<N>(-rule.decay), old, change);
        const Floats<N> average = fused<N>(all<N>(rule.momentum), change - before, before);
        const Floats<N> squares = fused<N>(all<N>(rule.added) * change, change,
                                           all<N>(rule.kept) * load<N>(at.squares));
        store<N>(at.average, average);
        store<N>(at.squares, squares);
        const Floats<N> divisor = root<N>(squares) / all<N>(rule.root) + all<N>(rule.epsilon);
        const Floats<N> left = DECOUPLED ? all<N>(rule.left) * old : old;
        store<N>(w, fused<N>(all<N>(rule.size), average / divisor, left));
    }
    SDFEEL_INLINE void one(float *w, Place at, float change) const {
        this->operator()<1>(w, at, Floats<1>{change});
    }
};

} // namespace sdfeel
