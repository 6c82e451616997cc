// Activations other than ReLU. Each is a stage of its own, which keeps its slopes for the backward
// pass.
//
// Computed in double by the series of exponential.hpp, four at a time, and rounded once: no C
// library has a part in it, so the bits are the same everywhere.
#pragma once

#include "exponential.hpp"
#include "pointwise.hpp"

namespace sdfeel {

SDFEEL_INLINE double size_of(double x) { return x < 0 ? -x : x; }

// (1 - e) / (1 + e) with e = exp(-2 z) for z >= 0; next to zero, where that cancels, the series.
SDFEEL_INLINE double tanh_of(double z, double e) {
    return z < 1e-4 ? z - z * z * z / 3 : (1 - e) / (1 + e);
}

// Each has of(z, y, slope), which computes AT_ONCE values and slopes; a NaN stays one. `P` gives
// `parameter`.
template <class P> struct Tanh {
    static SDFEEL_INLINE void of(const double *z, double *y, double *slope) {
        double e[AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++) e[k] = -2 * size_of(z[k]);
        exponentials<FOR_DOUBLES>(e, e);
        for (int k = 0; k < AT_ONCE; k++) {
            const double t = tanh_of(size_of(z[k]), e[k]);
            y[k] = z[k] < 0 ? -t : t;
            slope[k] = 1 - t * t;
        }
    }
};

template <class P> struct Sigmoid {
    // The function at z and at -z: neither is 1 minus something close to it.
    static SDFEEL_INLINE void both(const double *z, double *here, double *there) {
        double e[AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++) e[k] = -size_of(z[k]);
        exponentials<FOR_DOUBLES>(e, e);
        for (int k = 0; k < AT_ONCE; k++) {
            const double high = 1 / (1 + e[k]), low = e[k] * high;
            here[k] = z[k] < 0 ? low : high;
            there[k] = z[k] < 0 ? high : low;
        }
    }
    static SDFEEL_INLINE void of(const double *z, double *y, double *slope) {
        double there[AT_ONCE];
        both(z, y, there);
        for (int k = 0; k < AT_ONCE; k++) slope[k] = y[k] * there[k];
    }
};

template <class P> struct SiLU {
    static SDFEEL_INLINE void of(const double *z, double *y, double *slope) {
        double here[AT_ONCE], there[AT_ONCE];
        Sigmoid<P>::both(z, here, there);
        for (int k = 0; k < AT_ONCE; k++) {
            y[k] = z[k] * here[k];
            slope[k] = here[k] * (1 + z[k] * there[k]);
        }
    }
};

template <class P> struct LeakyReLU {
    static SDFEEL_INLINE void of(const double *z, double *y, double *slope) {
        for (int k = 0; k < AT_ONCE; k++) {
            slope[k] = z[k] > 0 ? 1 : P::parameter;
            y[k] = z[k] * slope[k];
        }
    }
};

template <class P> struct ELU {
    static SDFEEL_INLINE void of(const double *z, double *y, double *slope) {
        double e[AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++) e[k] = z[k] > 0 ? 0 : z[k];
        exponentials<FOR_DOUBLES>(e, e);
        for (int k = 0; k < AT_ONCE; k++) {
            const double x = z[k], near = x + x * x / 2 + x * x * x / 6;
            y[k] = x > 0 ? x : P::parameter * (size_of(x) < 1e-4 ? near : e[k] - 1);
            slope[k] = x > 0 ? 1 : P::parameter * e[k];
        }
    }
};

// z times the share of a normal distribution below z, which is
//     1/2 + density(z) * (z + z^3/3 + z^5/(3*5) + z^7/(3*5*7) + ...);
// far from zero, its tail.
template <class P> struct GELU {
    static constexpr double FAR = 6;
    static constexpr int TERMS = 64;
    static SDFEEL_INLINE void of(const double *z, double *y, double *slope) {
        double e[AT_ONCE], square[AT_ONCE], total[AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++) {
            e[k] = -z[k] * z[k] / 2;
            square[k] = size_of(z[k]) < FAR ? z[k] * z[k] : 0;
            total[k] = 1;
        }
        exponentials<FOR_DOUBLES>(e, e);
        for (int n = TERMS; n > 0; n--)
            SDFEEL_UNROLL for (int k = 0; k < AT_ONCE; k++)
                total[k] = fused(total[k], square[k] / (2 * n + 1), 1.0);
        for (int k = 0; k < AT_ONCE; k++) {
            const double density = e[k] * 0x1.9884533d43651p-2, over = 1 / (z[k] * z[k]);
            const double tail = density / size_of(z[k]) * (1 - over * (1 - 3 * over));
            const double near = 0.5 + density * z[k] * total[k];
            const double below = !(size_of(z[k]) >= FAR) ? near : z[k] < 0 ? tail : 1 - tail;
            y[k] = z[k] * below;
            slope[k] = below + z[k] * density;
        }
    }
};

// GELU as torch computes it with approximate="tanh".
template <class P> struct TanhGELU {
    static SDFEEL_INLINE void of(const double *z, double *y, double *slope) {
        constexpr double SCALE = 0x1.988453440fb5dp-1, CUBE = 0.044715;
        double inner[AT_ONCE], t[AT_ONCE], unused[AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++) inner[k] = SCALE * (z[k] + CUBE * z[k] * z[k] * z[k]);
        Tanh<P>::of(inner, t, unused);
        for (int k = 0; k < AT_ONCE; k++) {
            const double steep = SCALE * (1 + 3 * CUBE * z[k] * z[k]);
            y[k] = 0.5 * z[k] * (1 + t[k]);
            slope[k] = 0.5 * (1 + t[k]) + 0.5 * z[k] * unused[k] * steep;
        }
    }
};

// `L` gives channels, height, width and Function.
template <class L, int BATCH> struct Smooth : Planes<L::channels, L::height, L::width, BATCH> {
    using Base = Planes<L::channels, L::height, L::width, BATCH>;
    using Base::dx, Base::SIZE, Base::x;
    static constexpr int PADDED = round_up(SIZE, AT_ONCE);
    float slopes[BATCH][PADDED], out[PADDED];

    template <bool TRAIN, class Next> SDFEEL_NOINLINE void forward(int n, Next &next) {
        for (int s = 0; s < n; s++) {
            for (int e = 0; e < SIZE; e += AT_ONCE) {
                double z[AT_ONCE] = {}, y[AT_ONCE], slope[AT_ONCE];
                for (int k = 0; k < least(AT_ONCE, SIZE - e); k++) z[k] = x[s][e + k];
                L::Function::of(z, y, slope);
                for (int k = 0; k < AT_ONCE; k++) {
                    out[e + k] = float(y[k]);
                    if (TRAIN) slopes[s][e + k] = float(slope[k]);
                }
            }
            for (int c = 0; c < L::channels; c++)
                for (int y = 0; y < L::height; y++)
                    memcpy(next.input(s) + place<Next, L::height, L::width>(c, y, 0),
                           out + (c * L::height + y) * L::width, L::width * 4);
        }
    }
    template <class Next> SDFEEL_NOINLINE void backward(int n, Next &next, const Rule &) {
        for (int s = 0; s < n; s++) {
            const float *from = next.input_gradient(s);
            for (int e = 0; e < SIZE; e++) dx[s][e] = from[e] * slopes[s][e];
        }
    }
};

} // namespace sdfeel
