// The tasks that Python gives: models to train and to measure, one at a time in one workspace.
#pragma once

#include "chain.hpp"

extern "C" {

// Kept in step with `Tasks` of library.py.
struct SdfeelTasks {
    int64_t count;
    const float *const *starts; // (count) the model each begins from
    const float *const *shifts; // (count) rows added to every gradient; null if there are none
    float *models;              // (rooms, parameters) where the trained models go
    int64_t rooms;              // task i's model goes to room i modulo this
    int64_t parameters;
    const int64_t *clients;
    const int64_t *first;       // mini-batches the client has taken before
    const int64_t *steps;       // mini-batches to take
    const int64_t *sizes;       // examples in a mini-batch
    const int64_t *const *picked; // (steps, size) rows of the data, for each task
    const void *x;              // of the type that the model takes, and so are the targets
    const void *y;
    uint64_t key;
    const float *rates;         // (count) learning rates
    float momentum, decay;
    uint8_t *finite;            // (count) 0 where the model has numbers that are not finite
    double first_average, second_average, epsilon; // Adam's: what is kept of its averages
    double own_decay;           // AdamW's
};

// Kept in step with `Measure` of library.py.
struct SdfeelMeasure {
    const float *model;
    int64_t count;
    const void *x;
    const void *y;
    int64_t block;              // examples whose losses are added up together
    double *losses;             // one sum per block
    int64_t *right;             // one count per block
    float *outputs;             // (count, classes), or null
};
}

namespace sdfeel {

// Whether all numbers are finite: x - x is 0 for them, and NaN for the others.
inline bool finite(const float *model, int64_t count) {
    constexpr int CHAINS = 4; // sums that do not wait for one another
    Floats<LANES> sums[CHAINS] = {};
    float total = 0;
    int64_t p = 0;
    for (; p + CHAINS * LANES <= count; p += CHAINS * LANES)
        SDFEEL_UNROLL for (int i = 0; i < CHAINS; i++) {
            const Floats<LANES> some = load<LANES>(model + p + i * LANES);
            sums[i] += some - some;
        }
    for (; p < count; p++) total += model[p] - model[p];
    return total + sum((sums[0] + sums[1]) + (sums[2] + sums[3])) == 0;
}

// Numbers that no stage owns stay as they are.
template <class Net> void keep_unowned(const SdfeelTasks &tasks, int64_t i, float *model) {
    if (tasks.parameters > Net::PARAMETERS)
        memcpy(model, tasks.starts[i], size_t(tasks.parameters) * 4);
}

// The trained model stays in the workspace. ORDERED: its start is in the stages' own orders.
template <bool ORDERED, class Net> void train_task(Net &net, const SdfeelTasks &tasks, int64_t i) {
    typename Net::Pace pace(Asked{tasks.rates[i], tasks.momentum, tasks.decay, tasks.first_average,
                                  tasks.second_average, tasks.epsilon, tasks.own_decay});
    const int n = int(tasks.sizes[i]);
    const int64_t *picked = tasks.picked[i];
    const auto *x = static_cast<const typename Net::Input *>(tasks.x);
    const auto *y = static_cast<const typename Net::Target *>(tasks.y);
    const typename Net::Target *targets[Net::CAPACITY];
    const auto example = [&](int64_t s) { return x + picked[s] * Net::EXAMPLE_SIZE; };
    // Examples lie anywhere in memory, so those of step t + AHEAD are prefetched. What takes
    // longest is to look up pages that were not used for a while; a CPU looks up many at once if
    // nothing else is prefetched in between, so this takes one number of each page. The CPU guesses
    // the other cache lines when it reads the first: only examples that are needed at once are
    // prefetched line by line, too.
    constexpr int LINE = 64 / sizeof *x, PAGE = 4096 / sizeof *x, AHEAD = Net::LOOKS_AHEAD ? 2 : 1;
    const auto prefetch = [&](int64_t begin, int64_t count,
                              int apart) __attribute__((always_inline)) {
        for (int64_t s = begin; s < begin + count; s++)
            for (int e = 0; e < Net::EXAMPLE_SIZE + apart - 1; e += apart)
                __builtin_prefetch(example(s) + least(e, Net::EXAMPLE_SIZE - 1), 0, 2);
    };
    const int64_t first = least(AHEAD, int(tasks.steps[i])) * n; // examples that are needed at once
    prefetch(0, first, PAGE);
    prefetch(0, first, LINE);
    if (tasks.shifts) net.shift(tasks.shifts[i], pace.rate());
    if constexpr (ORDERED) net.read_ordered(tasks.starts[i]);
    else net.read(tasks.starts[i]);
    for (int64_t t = 0; t < tasks.steps[i]; t++, picked += n) {
        if (t + AHEAD < tasks.steps[i]) prefetch(AHEAD * n, n, PAGE);
        for (int s = 0; s < n; s++) {
            targets[s] = y + picked[s] * Net::TARGETS;
            if (t == 0 || !Net::LOOKS_AHEAD) net.fill(s, example(s));
            if (Net::LOOKS_AHEAD && t + 1 < tasks.steps[i]) net.fill_next(s, example(n + s));
        }
        const Address at{tasks.key, uint64_t(tasks.clients[i]), uint64_t(tasks.first[i] + t)};
        net.step(n, targets, at, pace.next());
    }
}

template <class Net> void train_one(Net &net, const SdfeelTasks &tasks, int64_t i) {
    float *const model = tasks.models + i % tasks.rooms * tasks.parameters;
    train_task<false>(net, tasks, i);
    keep_unowned<Net>(tasks, i, model);
    net.write(model);
    tasks.finite[i] = finite(model, tasks.parameters);
}

template <class Net> void measure_block(Net &net, const SdfeelMeasure &measure, int64_t block) {
    net.read(measure.model);
    net.pack();
    const int64_t begin = block * measure.block;
    const int64_t end = begin + measure.block < measure.count ? begin + measure.block : measure.count;
    const auto *x = static_cast<const typename Net::Input *>(measure.x);
    const auto *y = static_cast<const typename Net::Target *>(measure.y);
    double loss = 0;
    int64_t right = 0;
    for (int64_t i = begin; i < end; i += Net::CAPACITY) {
        const int n = end - i < Net::CAPACITY ? int(end - i) : Net::CAPACITY;
        for (int s = 0; s < n; s++) net.fill(s, x + (i + s) * Net::EXAMPLE_SIZE);
        net.template forward<false>(n);
        for (int s = 0; s < n; s++) {
            const auto *target = y + (i + s) * Net::TARGETS;
            loss += net.loss().loss(s, target);
            right += net.loss().right(s, target);
            if (measure.outputs)
                memcpy(measure.outputs + (i + s) * Net::CLASSES, net.loss().input(s),
                            Net::CLASSES * 4);
        }
    }
    measure.losses[block] = loss;
    measure.right[block] = right;
}

} // namespace sdfeel
