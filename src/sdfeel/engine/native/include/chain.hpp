// A model: stages in a row, and the loss at the end.
#pragma once

#include "dropout.hpp"
#include "sgd.hpp"
#include "softmax.hpp"

namespace sdfeel {

// Whether a stage can use the next batch before it has finished with this one.
template <class Stage> constexpr auto looks_ahead(int) -> decltype(&Stage::fill_next, true) {
    return true;
}
template <class Stage> constexpr bool looks_ahead(...) { return false; }

// The first stage's input is filled from a batch of examples; every stage writes its output into
// the input of the next, and takes its gradient from there. Stages before FIRST have nothing to
// learn, and need no gradient.
template <int BATCH, int EXAMPLE, int FIRST, class Loss, class... Stages> struct Chain {
    static constexpr int CAPACITY = BATCH, EXAMPLE_SIZE = EXAMPLE, CLASSES = Loss::COUNT;
    static constexpr int STAGES = sizeof...(Stages);
    static constexpr bool LOOKS_AHEAD = looks_ahead<FirstOf<Stages...>>(0);
    static constexpr int64_t PARAMETERS = (Stages::PARAMETERS + ...);
    Row<Stages..., Loss> stages;

    template <int I> auto &at() { return nth<I>(stages); }
    Loss &loss() { return at<STAGES>(); }

    void read(const float *row) {
        each<0>([&](auto &stage) { stage.read(row); });
    }
    // Add `row` to every gradient from now on. It goes through the weights: read them afterwards.
    void shift(const float *row, float rate) {
        read(row);
        each<0>([&](auto &stage) { stage.take_shift(rate); });
    }
    void write(float *row) {
        each<0>([&](auto &stage) { stage.write(row); });
    }
    // Bring the weights into the order in which the kernels read them.
    void pack() {
        each<0>([](auto &stage) { stage.pack(); });
    }

    void fill(int s, const float *example) { at<0>().fill(s, example); }
    void fill_next(int s, const float *example) {
        if constexpr (LOOKS_AHEAD) at<0>().fill_next(s, example);
    }

    template <bool TRAIN> void forward(int n) { forward_from<0, TRAIN>(n); }

    // One local step: the batch is in place.
    void step(int n, const int *targets, const Address &at, const Rule &rule) {
        pack();
        each<0>([&](auto &stage) { stage.draw(at, n); });
        forward<true>(n);
        for (int s = 0; s < n; s++) loss().differentiate(s, targets[s], -rule.rate / float(n));
        backward_from<STAGES - 1>(n, rule);
    }

  private:
    template <int I, class Act> void each(const Act &act) {
        if constexpr (I < STAGES) {
            act(at<I>());
            each<I + 1>(act);
        }
    }
    template <int I, bool TRAIN> void forward_from(int n) {
        if constexpr (I < STAGES) {
            at<I>().template forward<TRAIN>(n, at<I + 1>());
            forward_from<I + 1, TRAIN>(n);
        }
    }
    template <int I> void backward_from(int n, const Rule &rule) {
        if constexpr (I >= FIRST) {
            at<I>().backward(n, at<I + 1>(), rule);
            backward_from<I - 1>(n, rule);
        }
    }
};

} // namespace sdfeel
