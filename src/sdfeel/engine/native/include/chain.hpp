// Stages in a row, and a model: such a row with the loss at the end.
#pragma once

#include "dropout.hpp"
#include "sgd.hpp"

namespace sdfeel {

// Whether a stage can use the next batch before it has finished with this one.
template <class Stage> constexpr auto looks_ahead(int) -> decltype(&Stage::fill_next, true) {
    return true;
}
template <class Stage> constexpr bool looks_ahead(...) { return false; }

// Whether a stage has its weights in an order of its own. A row can be brought into that order once
// for many clients; the stage's weights still fill the same part of the row.
template <class Stage> constexpr auto has_order(int) -> decltype(&Stage::read_ordered, true) {
    return true;
}
template <class Stage> constexpr bool has_order(...) { return false; }

// Stages in a row before an end. Every stage writes its output into the input of the next, and
// takes its gradient from there. Stages before FIRST have nothing to learn, and need no gradient.
template <int FIRST, class End, class... Stages> struct Line {
    static constexpr int STAGES = sizeof...(Stages);
    static constexpr int64_t PARAMETERS = (int64_t(0) + ... + Stages::PARAMETERS);
    Row<Stages..., End> stages;

    template <int I> auto &at() { return nth<I>(stages); }
    End &end() { return at<STAGES>(); }

    void read(const float *row) {
        each<0>([&](auto &stage) { stage.read(row); });
    }
    // The same for a row in which stages have their own orders.
    static constexpr bool ORDERS = (false || ... || has_order<Stages>(0));
    void read_ordered(const float *row) {
        each<0>([&](auto &stage) {
            if constexpr (has_order<Type<decltype(stage)>>(0)) stage.read_ordered(row);
            else stage.read(row);
        });
    }
    void write_ordered(float *row) {
        each<0>([&](auto &stage) {
            if constexpr (has_order<Type<decltype(stage)>>(0)) stage.write_ordered(row);
            else stage.write(row);
        });
    }
    // act(place, numbers, count) for all pieces of such a row of `size` numbers, which need not be
    // neighbours: what a stage has in its order is not copied, all else is written to `row` first.
    template <class Act> void each_piece(float *row, int64_t size, const Act &act) {
        int64_t done = 0;
        each<0>([&](auto &stage) {
            if constexpr (has_order<Type<decltype(stage)>>(0)) stage.write_rest(row);
            else stage.write(row);
        });
        each<0>([&](auto &stage) {
            using Stage = Type<decltype(stage)>;
            if constexpr (has_order<Stage>(0)) {
                act(done, row + done, Stage::FIRST_WEIGHT - done);
                stage.each_row(act);
                done = Stage::FIRST_WEIGHT + Stage::WEIGHTS;
            }
        });
        act(done, row + done, size - done);
    }
    // Bring a row of `size` numbers from torch's order into the stages' own orders, or BACK.
    template <bool BACK, class T> static void turn(const T *from, T *to, int64_t size) {
        int64_t done = 0;
        (turn_one<Stages, BACK>(from, to, done), ...);
        memcpy(to + done, from + done, size_t(size - done) * sizeof(T));
    }
    // What was read is a shift, not a model.
    void take_shift(float rate) {
        each<0>([&](auto &stage) { stage.take_shift(rate); });
    }
    void write(float *row) {
        each<0>([&](auto &stage) { stage.write(row); });
    }
    // Bring the weights into the order in which the kernels read them.
    void pack() {
        each<0>([](auto &stage) { stage.pack(); });
    }
    void draw(const Address &at, int n) {
        each<0>([&](auto &stage) { stage.draw(at, n); });
    }
    template <bool TRAIN> void forward(int n) { forward_from<0, TRAIN>(n); }
    void backward(int n, const Rule &rule) { backward_from<STAGES - 1>(n, rule); }

  private:
    template <class Stage, bool BACK, class T>
    static void turn_one(const T *from, T *to, int64_t &done) {
        if constexpr (has_order<Stage>(0)) {
            memcpy(to + done, from + done, size_t(Stage::FIRST_WEIGHT - done) * sizeof(T));
            if (BACK) Stage::restore(from, to);
            else Stage::order(from, to);
            done = Stage::FIRST_WEIGHT + Stage::WEIGHTS;
        }
    }
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

// A model: EXAMPLE numbers of type `Value` are filled into the first stage, and a loss is its end.
template <int BATCH, class Value, int EXAMPLE, int FIRST, class Update, class Loss, class... Stages>
struct Chain : Line<FIRST, Loss, Stages...> {
    using Base = Line<FIRST, Loss, Stages...>;
    using Input = Value;
    using Target = typename Loss::Target;
    using Pace = typename Update::Pace;
    static constexpr int CAPACITY = BATCH, EXAMPLE_SIZE = EXAMPLE, CLASSES = Loss::COUNT;
    static constexpr int TARGETS = Loss::TARGETS; // numbers of an example's target
    static constexpr bool LOOKS_AHEAD = looks_ahead<FirstOf<Stages...>>(0);

    Loss &loss() { return this->end(); }
    // Add `row` to every gradient from now on. It goes through the weights: read them afterwards.
    void shift(const float *row, float rate) {
        this->read(row);
        this->take_shift(rate);
    }
    void fill(int s, const Value *example) { this->template at<0>().fill(s, example); }
    void fill_next(int s, const Value *example) {
        if constexpr (LOOKS_AHEAD) this->template at<0>().fill_next(s, example);
    }

    // One local step: the batch is in place.
    void step(int n, const Target *const *targets, const Address &at, const Rule &rule) {
        this->pack();
        this->draw(at, n);
        this->template forward<true>(n);
        for (int s = 0; s < n; s++) loss().differentiate(s, targets[s], -rule.rate / float(n));
        this->backward(n, rule);
    }
};

} // namespace sdfeel
