// Batch normalisation of planes, with the ReLU that follows it.
//
// y = x * scale + shift, where scale and shift come from the batch while training and from the
// running statistics while measuring. The statistics are part of a model's row.
#pragma once

#include "pointwise.hpp"

namespace sdfeel {

// `L` gives channels, height, width, relu, sends_gradient, weight, bias (places in the row, -1:
// none), mean, variance (places of the running statistics), epsilon, momentum and floor.
template <class L, int BATCH, class Update>
struct BatchNorm : Planes<L::channels, L::height, L::width, BATCH> {
    using Base = Planes<L::channels, L::height, L::width, BATCH>;
    using Base::dx, Base::PLANE, Base::x;
    static constexpr int CHANNELS = L::channels;
    static constexpr bool AFFINE = L::weight >= 0;
    static constexpr int64_t PARAMETERS = (AFFINE ? 4 : 2) * int64_t(CHANNELS);

    float weights[CHANNELS], bias[CHANNELS], running_mean[CHANNELS], running_variance[CHANNELS];
    float mean[CHANNELS], deviation[CHANNELS]; // of this batch; the deviation inverted
    typename Update::template Velocity<CHANNELS> velocity, bias_velocity;

    void read(const float *row) {
        for (int c = 0; c < CHANNELS; c++) {
            weights[c] = AFFINE ? row[L::weight + c] : 1;
            bias[c] = AFFINE ? row[L::bias + c] : 0;
            running_mean[c] = row[L::mean + c];
            const float variance = row[L::variance + c]; // mixed models may have less; NaN stays
            running_variance[c] = variance < L::floor ? L::floor : variance;
        }
        velocity.forget();
        bias_velocity.forget();
    }
    // What was read is a shift, not a model.
    void take_shift(float rate) {
        velocity.keep(weights, rate);
        bias_velocity.keep(bias, rate);
    }
    void write(float *row) const {
        if (AFFINE) {
            memcpy(row + L::weight, weights, sizeof weights);
            memcpy(row + L::bias, bias, sizeof bias);
        }
        memcpy(row + L::mean, running_mean, sizeof running_mean);
        memcpy(row + L::variance, running_variance, sizeof running_variance);
    }

    template <bool TRAIN, class Next> SDFEEL_NOINLINE void forward(int n, Next &next) {
        for (int c = 0; c < CHANNELS; c++) {
            if (TRAIN) {
                measure(n, c);
            } else {
                mean[c] = running_mean[c];
                deviation[c] = 1 / __builtin_sqrtf(running_variance[c] + L::epsilon);
            }
            for (int s = 0; s < n; s++) normalise(s, c, next);
        }
    }

    // Every plane's gradient depends on sums over the whole batch, which are computed first.
    template <class Next> SDFEEL_NOINLINE void backward(int n, Next &next, const Rule &rule) {
        double along[CHANNELS] = {}, total[CHANNELS] = {}; // sums of d * normalised, and of d
        for (int s = 0; s < n; s++) {
            const float *from = next.input_gradient(s);
            for (int c = 0; c < CHANNELS; c++) take(s, c, from + c * PLANE, along[c], total[c]);
        }
        if constexpr (L::sends_gradient)
            for (int c = 0; c < CHANNELS; c++) send(n, c, along[c], total[c]);
        if constexpr (AFFINE) {
            const Update update(rule);
            for (int c = 0; c < CHANNELS; c++) {
                update.one(weights + c, velocity.at(c), float(along[c]));
                update.one(bias + c, bias_velocity.at(c), float(total[c]));
            }
        }
    }

  private:
    float scale(int c) const { return weights[c] * deviation[c]; }
    float shift(int c) const { return bias[c] - mean[c] * scale(c); }

    // A sum over a plane: float within the plane, double beyond.
    struct PlaneSum {
        Floats<LANES> whole[PARTS] = {};
        Floats<1> rest = {};

        // Where the terms of N neighbours go: whole vectors in turn.
        template <int N> SDFEEL_INLINE Floats<N> &of(int part) {
            if constexpr (N == LANES) return whole[part];
            else return rest;
        }
        double total() const { return double(sum(whole)) + double(rest[0]); }
    };
    // act(lanes, i, part) over a plane, in the order of its sums.
    template <class Act> static SDFEEL_INLINE void in_order(const Act &act) {
        int i = 0;
        for (; i + ORDER <= PLANE; i += ORDER)
            SDFEEL_UNROLL for (int part = 0; part < PARTS; part++)
                act(Number<LANES>(), i + part * LANES, part);
        for (; i < PLANE; i++) act(Number<1>(), i, 0);
    }

    // The statistics of a channel: over the batch, and running.
    void measure(int n, int c) {
        const double count = double(n) * PLANE;
        double total = 0, squares = 0;
        for (int s = 0; s < n; s++) {
            PlaneSum plane;
            in_order([&](auto lanes, int i, int part) {
                constexpr int N = decltype(lanes)::value;
                plane.template of<N>(part) += load<N>(x[s] + c * PLANE + i);
            });
            total += plane.total();
        }
        mean[c] = float(total / count);
        for (int s = 0; s < n; s++) {
            PlaneSum plane;
            in_order([&](auto lanes, int i, int part) {
                constexpr int N = decltype(lanes)::value;
                const Floats<N> off = load<N>(x[s] + c * PLANE + i) - all<N>(mean[c]);
                Floats<N> &sum = plane.template of<N>(part);
                sum = fused<N>(off, off, sum);
            });
            squares += plane.total();
        }
        deviation[c] = float(1 / __builtin_sqrt(squares / count + double(L::epsilon)));
        running_mean[c] += L::momentum * (mean[c] - running_mean[c]);
        // Unbiased here alone, as in torch.
        running_variance[c] += L::momentum * (float(squares / (count - 1)) - running_variance[c]);
    }

    template <class Next> SDFEEL_INLINE void normalise(int s, int c, Next &next) {
        constexpr int ROWS = Next::CONTIGUOUS ? 1 : L::height, COUNT = PLANE / ROWS;
        const float *from = x[s] + c * PLANE;
        const float factor = scale(c), offset = shift(c);
        for (int y = 0; y < ROWS; y++) {
            float *to = next.input(s) + place<Next, L::height, L::width>(c, y, 0);
            in_vectors<COUNT>([&](auto lanes, int i) {
                constexpr int N = decltype(lanes)::value;
                Floats<N> value = normal<N>(from + y * COUNT + i, factor, offset);
                if (L::relu) value = value <= Floats<N>{} ? Floats<N>{} : value; // a NaN passes
                store<N>(to + i, value);
            });
        }
    }
    template <int N>
    static SDFEEL_INLINE Floats<N> normal(const float *from, float factor, float offset) {
        return fused<N>(load<N>(from), all<N>(factor), all<N>(offset));
    }

    // Keep what flows into a plane, without what ReLU stops, and add up its sums.
    SDFEEL_INLINE void take(int s, int c, const float *from, double &along, double &total) {
        const float *own = x[s] + c * PLANE;
        float *d = dx[s] + c * PLANE;
        const float factor = scale(c), offset = shift(c);
        PlaneSum flows, products;
        in_order([&](auto lanes, int i, int part) {
            constexpr int N = decltype(lanes)::value;
            Floats<N> flow = load<N>(from + i);
            if (L::relu)
                flow = normal<N>(own + i, factor, offset) <= Floats<N>{} ? Floats<N>{} : flow;
            store<N>(d + i, flow);
            flows.template of<N>(part) += flow;
            Floats<N> &sum = products.template of<N>(part);
            sum = fused<N>(flow, (load<N>(own + i) - all<N>(mean[c])) * all<N>(deviation[c]), sum);
        });
        along += products.total();
        total += flows.total();
    }

    // What flows on: the batch's mean and deviation depend on every input, too.
    void send(int n, int c, double along, double total) {
        const double count = double(n) * PLANE;
        const float factor = scale(c), slope = -factor * deviation[c] * float(along / count);
        const float offset = -factor * float(total / count) - slope * mean[c];
        for (int s = 0; s < n; s++) {
            const float *own = x[s] + c * PLANE;
            float *d = dx[s] + c * PLANE;
            in_vectors<PLANE>([&](auto lanes, int i) {
                constexpr int N = decltype(lanes)::value;
                const Floats<N> rest = fused<N>(load<N>(own + i), all<N>(slope), all<N>(offset));
                store<N>(d + i, fused<N>(load<N>(d + i), all<N>(factor), rest));
            });
        }
    }
};

} // namespace sdfeel
