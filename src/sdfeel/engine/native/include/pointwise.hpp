// ReLU, dropout and pooling that no convolution or linear layer computes as part of itself.
//
// Such places are rare (dropout between the last convolution and the first linear layer, a second
// pooling), so these stages are plain loops.
#pragma once

#include "dropout.hpp"
#include "sgd.hpp"
#include "vectors.hpp"

namespace sdfeel {

// What the stages without parameters share: C planes of H x W, contiguous.
template <int CHANNELS, int HEIGHT, int WIDTH, int BATCH> struct Planes {
    static constexpr bool CONTIGUOUS = true;
    static constexpr int64_t PARAMETERS = 0;
    static constexpr int IN_PLANE = 0, IN_ROW = 0;
    static constexpr int PLANE = HEIGHT * WIDTH, SIZE = CHANNELS * PLANE;
    alignas(64) float x[BATCH][SIZE];
    alignas(64) float dx[BATCH][SIZE];
    float over_read[ORDER];

    float *input(int s) { return x[s]; }
    const float *input_gradient(int s) { return dx[s]; }
    void fill(int s, const float *example) { memcpy(x[s], example, SIZE * 4); }
    void read(const float *) {}
    void take_shift(float) {}
    void write(float *) const {}
    void pack() {}
    void draw(const Address &, int) {}
};

// Where element (c, y, x) of a sample lies in the input of stage `Next`.
template <class Next, int HEIGHT, int WIDTH>
SDFEEL_INLINE constexpr int place(int c, int y, int x) {
    return Next::CONTIGUOUS ? (c * HEIGHT + y) * WIDTH + x
                            : c * Next::IN_PLANE + y * Next::IN_ROW + x;
}

// `L` gives channels, height, width, relu, Drop: ReLU first, then dropout; each may be absent.
template <class L, int BATCH>
struct Pointwise : Planes<L::channels, L::height, L::width, BATCH> {
    using Base = Planes<L::channels, L::height, L::width, BATCH>;
    using Base::dx, Base::PLANE, Base::SIZE, Base::x;
    using Drop = typename L::Drop;
    static constexpr int EACH = Drop::channels ? L::channels : SIZE; // multipliers of a sample
    float multipliers[Drop::active ? BATCH * EACH : 1];

    void draw(const Address &at, int n) {
        if constexpr (Drop::active) Drop::fill(at, int64_t(n) * EACH, multipliers);
    }
    template <bool TRAIN, class Next> void forward(int n, Next &next) {
        for (int s = 0; s < n; s++)
            for (int c = 0; c < L::channels; c++)
                for (int y = 0; y < L::height; y++)
                    for (int i = 0; i < L::width; i++) {
                        const int e = (c * L::height + y) * L::width + i;
                        float z = x[s][e];
                        if (L::relu && z <= 0) z = 0;
                        if (TRAIN) z *= kept(s, c, e);
                        next.input(s)[place<Next, L::height, L::width>(c, y, i)] = z;
                    }
    }
    template <class Next> void backward(int n, Next &next, const Rule &) {
        for (int s = 0; s < n; s++) {
            const float *from = next.input_gradient(s);
            for (int e = 0; e < SIZE; e++) {
                const bool dead = L::relu && x[s][e] <= 0;
                dx[s][e] = dead ? 0.0f : from[e] * kept(s, e / PLANE, e);
            }
        }
    }

  private:
    SDFEEL_INLINE float kept(int s, int c, int e) const {
        if constexpr (Drop::active) return multipliers[s * EACH + (Drop::channels ? c : e)];
        return 1;
    }
};

// `L` gives channels, height, width, kernel, stride and padding (y and x of each).
template <class L, int BATCH> struct MaxPool : Planes<L::channels, L::height, L::width, BATCH> {
    using Base = Planes<L::channels, L::height, L::width, BATCH>;
    using Base::dx, Base::PLANE, Base::SIZE, Base::x;
    static constexpr int OUT_H = (L::height + 2 * L::padding_y - L::kernel_y) / L::stride_y + 1;
    static constexpr int OUT_W = (L::width + 2 * L::padding_x - L::kernel_x) / L::stride_x + 1;
    int winner[BATCH][L::channels * OUT_H * OUT_W]; // the place of each maximum in its sample

    template <bool TRAIN, class Next> void forward(int n, Next &next) {
        for (int s = 0; s < n; s++)
            for (int c = 0; c < L::channels; c++)
                for (int y = 0; y < OUT_H; y++)
                    for (int i = 0; i < OUT_W; i++) {
                        const int best = largest(s, c, y, i);
                        winner[s][(c * OUT_H + y) * OUT_W + i] = best;
                        next.input(s)[place<Next, OUT_H, OUT_W>(c, y, i)] = x[s][best];
                    }
    }
    template <class Next> void backward(int n, Next &next, const Rule &) {
        for (int s = 0; s < n; s++) {
            const float *from = next.input_gradient(s);
            memset(dx[s], 0, SIZE * 4);
            for (int p = 0; p < L::channels * OUT_H * OUT_W; p++) dx[s][winner[s][p]] += from[p];
        }
    }

  private:
    // The first of the largest in the window, as in torch; a NaN wins.
    int largest(int s, int c, int y, int i) const {
        const int y0 = y * L::stride_y - L::padding_y, x0 = i * L::stride_x - L::padding_x;
        int best = -1;
        for (int v = most(0, y0); v < least(L::height, y0 + L::kernel_y); v++)
            for (int u = most(0, x0); u < least(L::width, x0 + L::kernel_x); u++) {
                const int e = c * PLANE + v * L::width + u;
                if (best < 0 || x[s][e] > x[s][best] || x[s][e] != x[s][e]) best = e;
            }
        return best;
    }
};

// The mean of each window; `L` gives what MaxPool's does, and padded: does padding count?
template <class L, int BATCH> struct AvgPool : Planes<L::channels, L::height, L::width, BATCH> {
    using Base = Planes<L::channels, L::height, L::width, BATCH>;
    using Base::dx, Base::PLANE, Base::SIZE, Base::x;
    static constexpr int OUT_H = (L::height + 2 * L::padding_y - L::kernel_y) / L::stride_y + 1;
    static constexpr int OUT_W = (L::width + 2 * L::padding_x - L::kernel_x) / L::stride_x + 1;

    template <bool TRAIN, class Next> void forward(int n, Next &next) {
        for (int s = 0; s < n; s++)
            for (int c = 0; c < L::channels; c++)
                for (int y = 0; y < OUT_H; y++)
                    for (int i = 0; i < OUT_W; i++) {
                        double total = 0;
                        const int count = window(c, y, i, [&](int e) { total += double(x[s][e]); });
                        next.input(s)[place<Next, OUT_H, OUT_W>(c, y, i)] = float(total / count);
                    }
    }
    template <class Next> void backward(int n, Next &next, const Rule &) {
        for (int s = 0; s < n; s++) {
            const float *from = next.input_gradient(s);
            memset(dx[s], 0, SIZE * 4);
            for (int c = 0; c < L::channels; c++)
                for (int y = 0; y < OUT_H; y++)
                    for (int i = 0; i < OUT_W; i++) {
                        const int count = window(c, y, i, [](int) {});
                        const float each = *from++ / float(count);
                        window(c, y, i, [&](int e) { dx[s][e] += each; });
                    }
        }
    }

  private:
    // act(place) over a window; returns what its sum is divided by.
    template <class Act> static SDFEEL_INLINE int window(int c, int y, int i, const Act &act) {
        const int y0 = y * L::stride_y - L::padding_y, x0 = i * L::stride_x - L::padding_x;
        int count = 0;
        for (int v = most(0, y0); v < least(L::height, y0 + L::kernel_y); v++)
            for (int u = most(0, x0); u < least(L::width, x0 + L::kernel_x); u++) {
                act(c * PLANE + v * L::width + u);
                count++;
            }
        return L::padded ? L::kernel_y * L::kernel_x : count;
    }
};

} // namespace sdfeel
