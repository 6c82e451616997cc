// A model: stages in a row, and the loss at the end.
#pragma once

#include <tuple>

#include "dropout.hpp"
#include "sgd.hpp"
#include "softmax.hpp"

namespace sdfeel {

// The first stage's input is filled from a batch of examples; every stage writes its output into
// the input of the next, and takes its gradient from there.
template <int BATCH, int EXAMPLE, class Loss, class... Stages> struct Chain {
    static constexpr int CAPACITY = BATCH, EXAMPLE_SIZE = EXAMPLE;
    static constexpr int COUNT = sizeof...(Stages);
    std::tuple<Stages..., Loss> stages;

    template <int I> auto &at() { return std::get<I>(stages); }
    Loss &loss() { return at<COUNT>(); }

    void read(const float *row) {
        each<0>([&](auto &stage) { stage.read(row); });
    }
    void write(float *row) {
        each<0>([&](auto &stage) { stage.write(row); });
    }
    // Bring the weights into the order in which the kernels read them.
    void pack() {
        each<0>([](auto &stage) { stage.pack(); });
    }

    template <bool TRAIN> void forward(int n) { forward_from<0, TRAIN>(n); }

    // One local step: the batch is in place.
    void step(int n, const int *targets, const Address &at, const Rule &rule) {
        pack();
        each<0>([&](auto &stage) { stage.draw(at, n); });
        forward<true>(n);
        for (int s = 0; s < n; s++) loss().differentiate(s, targets[s], -rule.rate / float(n));
        backward_from<COUNT - 1>(n, rule);
    }

  private:
    template <int I, class Act> void each(const Act &act) {
        if constexpr (I < COUNT) {
            act(at<I>());
            each<I + 1>(act);
        }
    }
    template <int I, bool TRAIN> void forward_from(int n) {
        if constexpr (I < COUNT) {
            at<I>().template forward<TRAIN>(n, at<I + 1>());
            forward_from<I + 1, TRAIN>(n);
        }
    }
    template <int I> void backward_from(int n, const Rule &rule) {
        if constexpr (I >= 0) {
            at<I>().backward(n, at<I + 1>(), rule);
            backward_from<I - 1>(n, rule);
        }
    }
};

} // namespace sdfeel
