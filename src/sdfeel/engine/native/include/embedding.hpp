// Words as vectors: the mean of an example's vectors, or one after the other.
//
// It comes first in a model, and its input is whole numbers. Sums over words are chains in the
// order of the words, and sums over examples in the order of the examples.
#pragma once

#include "dropout.hpp"
#include "sgd.hpp"

namespace sdfeel {

// `L` gives words (of the vocabulary), size (of a vector), length (words of an example), mean,
// padding (a word whose vector has no gradient, -1: none) and weight (the place in the row).
template <class L, int BATCH, class Update> struct Embedding {
    static constexpr int COUNT = L::words * L::size;
    static constexpr int64_t PARAMETERS = COUNT;
    int64_t text[BATCH][L::length];
    alignas(64) float weights[COUNT];
    alignas(64) float changes[COUNT]; // zeros, but for the words of the batch
    typename Update::template Velocity<COUNT> velocity;

    void fill(int s, const int64_t *example) { memcpy(text[s], example, sizeof text[s]); }
    void read(const float *row) {
        memcpy(weights, row + L::weight, sizeof weights);
        velocity.forget();
    }
    void write(float *row) const { memcpy(row + L::weight, weights, sizeof weights); }
    void take_shift(float rate) { velocity.keep(weights, rate); }
    void pack() {}
    void draw(const Address &, int) {}

    template <bool TRAIN, class Next> SDFEEL_NOINLINE void forward(int n, Next &next) {
        static_assert(Next::CONTIGUOUS, "what follows takes a line");
        for (int s = 0; s < n; s++)
            in_vectors<L::size>([&](auto lanes, int e) {
                constexpr int N = decltype(lanes)::value;
                Floats<N> total = {};
                for (int w = 0; w < L::length; w++) {
                    const Floats<N> one = load<N>(weights + text[s][w] * L::size + e);
                    if (L::mean) total += one;
                    else store<N>(next.input(s) + w * L::size + e, one);
                }
                if (L::mean) store<N>(next.input(s) + e, total / all<N>(float(L::length)));
            });
    }

    template <class Next> SDFEEL_NOINLINE void backward(int n, Next &next, const Rule &rule) {
        for (int s = 0; s < n; s++) {
            const float *from = next.input_gradient(s);
            in_vectors<L::size>([&](auto lanes, int e) {
                constexpr int N = decltype(lanes)::value;
                Floats<N> flow = load<N>(from + e) / all<N>(float(L::length));
                for (int w = 0; w < L::length; w++) {
                    if (text[s][w] == L::padding) continue;
                    if (!L::mean) flow = load<N>(from + w * L::size + e);
                    float *const to = changes + text[s][w] * L::size + e;
                    store<N>(to, load<N>(to) + flow);
                }
            });
        }
        const Update update(rule);
        if (Update::DENSE) change<COUNT>(0, update);
        for (int s = 0; s < n; s++)
            for (int w = 0; w < L::length; w++) {
                const int64_t begin = text[s][w] * L::size;
                // A word that comes again has no change left.
                if (!Update::DENSE) change<L::size>(begin, update);
                memset(changes + begin, 0, L::size * 4);
            }
    }

  private:
    template <int SOME> SDFEEL_INLINE void change(int64_t begin, const Update &update) {
        in_vectors<SOME>([&](auto lanes, int e) {
            constexpr int N = decltype(lanes)::value;
            const long at = begin + e;
            update.template operator()<N>(weights + at, velocity.at(at), load<N>(changes + at));
        });
    }
};

} // namespace sdfeel
