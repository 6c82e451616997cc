// Two branches from one input, whose outputs are added up, with the ReLU that follows them.
//
// Each branch is a line of stages. One branch may be empty: then its output is the input itself.
#pragma once

#include "chain.hpp"
#include "pointwise.hpp"

namespace sdfeel {

// Where a branch ends: C planes of H x W, contiguous, and what flows back into them.
template <int CHANNELS, int HEIGHT, int WIDTH, int BATCH> struct Joint {
    static constexpr bool CONTIGUOUS = true;
    static constexpr int IN_PLANE = 0, IN_ROW = 0, SIZE = CHANNELS * HEIGHT * WIDTH;
    alignas(64) float y[BATCH][SIZE], dy[BATCH][SIZE];
    float over_read[ORDER];

    float *input(int s) { return y[s]; }
    const float *input_gradient(int s) { return dy[s]; }
    void fill(int s, const float *values) { memcpy(y[s], values, SIZE * 4); }
};

// `L` gives channels, height, width, relu and the same three sizes of the sum.
template <class L, int BATCH, class Body, class Other>
struct Residual : Planes<L::channels, L::height, L::width, BATCH> {
    using Base = Planes<L::channels, L::height, L::width, BATCH>;
    using Base::dx, Base::x;
    static constexpr int IN_SIZE = Base::SIZE;
    static constexpr int SIZE = L::out_channels * L::out_height * L::out_width;
    static constexpr int64_t PARAMETERS = Body::PARAMETERS + Other::PARAMETERS;
    Body body;
    Other other;

    void read(const float *row) {
        body.read(row);
        other.read(row);
    }
    void take_shift(float rate) {
        body.take_shift(rate);
        other.take_shift(rate);
    }
    void write(float *row) {
        body.write(row);
        other.write(row);
    }
    void pack() {
        body.pack();
        other.pack();
    }
    void draw(const Address &at, int n) {
        body.draw(at, n);
        other.draw(at, n);
    }

    template <bool TRAIN, class Next> void forward(int n, Next &next) {
        for (int s = 0; s < n; s++) {
            body.template at<0>().fill(s, x[s]);
            other.template at<0>().fill(s, x[s]);
        }
        body.template forward<TRAIN>(n);
        other.template forward<TRAIN>(n);
        for (int s = 0; s < n; s++) add(s, next);
    }
    template <class Next> void backward(int n, Next &next, const Rule &rule) {
        for (int s = 0; s < n; s++) {
            const float *from = next.input_gradient(s);
            in_vectors<SIZE>([&](auto lanes, int e) {
                constexpr int N = decltype(lanes)::value;
                Floats<N> flow = load<N>(from + e);
                if (L::relu) flow = total<N>(s, e) <= Floats<N>{} ? Floats<N>{} : flow;
                store<N>(body.end().dy[s] + e, flow);
                store<N>(other.end().dy[s] + e, flow);
            });
        }
        body.backward(n, rule);
        other.backward(n, rule);
        for (int s = 0; s < n; s++) {
            const float *one = body.template at<0>().input_gradient(s);
            const float *two = other.template at<0>().input_gradient(s);
            in_vectors<IN_SIZE>([&](auto lanes, int e) {
                constexpr int N = decltype(lanes)::value;
                store<N>(dx[s] + e, load<N>(one + e) + load<N>(two + e));
            });
        }
    }

  private:
    template <int N> SDFEEL_INLINE Floats<N> total(int s, int e) {
        return load<N>(body.end().y[s] + e) + load<N>(other.end().y[s] + e);
    }
    template <class Next> SDFEEL_NOINLINE void add(int s, Next &next) {
        constexpr int ROWS = Next::CONTIGUOUS ? 1 : L::out_channels * L::out_height;
        for (int r = 0; r < ROWS; r++) {
            const int c = r / L::out_height, y = r % L::out_height;
            float *to = next.input(s) + place<Next, L::out_height, L::out_width>(c, y, 0);
            in_vectors<SIZE / ROWS>([&](auto lanes, int e) {
                constexpr int N = decltype(lanes)::value;
                Floats<N> sum = total<N>(s, r * (SIZE / ROWS) + e);
                if (L::relu) sum = sum <= Floats<N>{} ? Floats<N>{} : sum; // a NaN passes
                store<N>(to + e, sum);
            });
        }
    }
};

} // namespace sdfeel
