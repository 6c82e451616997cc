// What Python calls: plain C functions over a chain, all threads, one client per thread at a time.
//
// Threads are std::thread, started for each call: OpenMP would share its pool with torch, and a
// process that forks after using it hangs. A call takes milliseconds, a start microseconds. Each
// thread has a workspace of its own, kept for the next call.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "chain.hpp"

extern "C" {

// Kept in step with `Tasks` of library.py.
struct SdfeelTasks {
    int64_t count;
    const float *const *starts; // (count) the model each begins from
    float *models;              // (count, parameters) where the trained models go
    int64_t parameters;
    const int64_t *clients;
    const int64_t *first;       // mini-batches the client has taken before
    const int64_t *steps;       // mini-batches to take
    const int64_t *sizes;       // examples in a mini-batch
    const int64_t *const *picked; // (steps, size) rows of the data, for each task
    const float *x;
    const int64_t *y;
    uint64_t key;
    const float *rates;         // (count) learning rates
    float momentum, decay;
    uint8_t *finite;            // (count) 0 where the model left the finite numbers
};

// Kept in step with `Measure` of library.py.
struct SdfeelMeasure {
    const float *model;
    int64_t count;
    const float *x;
    const int64_t *y;
    int64_t block;              // examples whose losses are added up together
    double *losses;             // one sum per block
    int64_t *right;             // one count per block
    float *outputs;             // (count, classes), or null
};
}

namespace sdfeel {

constexpr int NO_MEMORY = 1;

template <class Net> struct Freed {
    void operator()(Net *net) const {
        net->~Net();
        std::free(net);
    }
};

template <class Net> using Workspace = std::unique_ptr<Net, Freed<Net>>;

// Workspaces of earlier calls, for later ones: large models would fault in their pages anew for
// every block of clients. A client leaves nothing behind that the next one could see.
template <class Net> struct Spare {
    std::mutex lock;
    std::vector<Workspace<Net>> idle;

    // A workspace, all zeros when it is new: borders and spare lanes rely on it.
    Workspace<Net> take() {
        {
            // A process forked while another thread held the lock must not wait for it.
            const std::unique_lock<std::mutex> held(lock, std::try_to_lock);
            if (held && !idle.empty()) {
                Workspace<Net> last = std::move(idle.back());
                idle.pop_back();
                return last;
            }
        }
        constexpr size_t PAGE = 4096, SIZE = (sizeof(Net) + PAGE - 1) / PAGE * PAGE;
        void *memory = std::aligned_alloc(PAGE, SIZE);
        if (!memory) return nullptr;
        return Workspace<Net>(new (memory) Net());
    }
    void give(Workspace<Net> used) {
        const std::unique_lock<std::mutex> held(lock, std::try_to_lock);
        if (held) idle.push_back(std::move(used));
    }
    void release() {
        const std::unique_lock<std::mutex> held(lock, std::try_to_lock);
        if (held) idle.clear();
    }
};
template <class Net> Spare<Net> spare;

// Run act(net, i) for i in 0 ... count - 1, each once, on up to `threads` threads.
template <class Net, class Act> int for_each(int64_t count, int threads, const Act &act) {
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    const auto work = [&] {
        Workspace<Net> net = spare<Net>.take();
        if (!net) {
            failed = true;
            return;
        }
        for (int64_t i; (i = next++) < count && !failed;) act(*net, i);
        spare<Net>.give(std::move(net));
    };
    std::vector<std::thread> others;
    try {
        for (int t = 1; t < threads && t < count; t++) others.emplace_back(work);
    } catch (const std::system_error &) {
        // No more threads to be had: those there are do the work.
    }
    work();
    for (std::thread &other : others) other.join();
    return failed ? NO_MEMORY : 0;
}

// Whether all numbers are finite: a NaN or an infinity survives the sum.
inline bool finite(const float *model, int64_t count) {
    constexpr int CHAINS = 4; // sums that do not wait for one another
    Floats<LANES> sums[CHAINS] = {};
    float total = 0;
    int64_t p = 0;
    for (; p + CHAINS * LANES <= count; p += CHAINS * LANES)
        SDFEEL_UNROLL for (int i = 0; i < CHAINS; i++)
            sums[i] += load<LANES>(model + p + i * LANES);
    for (; p < count; p++) total += model[p];
    return std::isfinite(total + sum((sums[0] + sums[1]) + (sums[2] + sums[3])));
}

template <class Net> void train_one(Net &net, const SdfeelTasks &tasks, int64_t i) {
    float *model = tasks.models + i * tasks.parameters;
    if (tasks.parameters > Net::PARAMETERS) // numbers that no stage owns stay as they are
        std::memcpy(model, tasks.starts[i], size_t(tasks.parameters) * 4);
    net.read(tasks.starts[i]);
    const Rule rule{tasks.rates[i], tasks.momentum, tasks.decay};
    const int n = int(tasks.sizes[i]);
    const int64_t *picked = tasks.picked[i];
    int targets[Net::CAPACITY];
    const auto example = [&](int s) { return tasks.x + picked[s] * Net::EXAMPLE_SIZE; };
    for (int64_t t = 0; t < tasks.steps[i]; t++, picked += n) {
        const bool more = t + 1 < tasks.steps[i];
        for (int s = 0; s < n; s++) {
            targets[s] = int(tasks.y[picked[s]]);
            if (t == 0 || !Net::LOOKS_AHEAD) net.fill(s, example(s));
            if (more && Net::LOOKS_AHEAD) net.fill_next(s, example(n + s));
            else if (more) // the examples lie anywhere: ask for the next in time
                for (int e = 0; e < Net::EXAMPLE_SIZE; e += 16)
                    __builtin_prefetch(example(n + s) + e, 0, 2);
        }
        const Address at{tasks.key, uint64_t(tasks.clients[i]), uint64_t(tasks.first[i] + t)};
        net.step(n, targets, at, rule);
    }
    net.write(model);
    tasks.finite[i] = finite(model, tasks.parameters);
}

template <class Net> void measure_block(Net &net, const SdfeelMeasure &measure, int64_t block) {
    net.read(measure.model);
    net.pack();
    const int64_t begin = block * measure.block;
    const int64_t end = std::min(begin + measure.block, measure.count);
    double loss = 0;
    int64_t right = 0;
    for (int64_t i = begin; i < end; i += Net::CAPACITY) {
        const int n = end - i < Net::CAPACITY ? int(end - i) : Net::CAPACITY;
        for (int s = 0; s < n; s++) net.fill(s, measure.x + (i + s) * Net::EXAMPLE_SIZE);
        net.template forward<false>(n);
        for (int s = 0; s < n; s++) {
            const int target = int(measure.y[i + s]);
            loss += net.loss().loss(s, target);
            right += net.loss().predicted(s) == target;
            if (measure.outputs)
                std::memcpy(measure.outputs + (i + s) * Net::CLASSES, net.loss().input(s),
                            Net::CLASSES * 4);
        }
    }
    measure.losses[block] = loss;
    measure.right[block] = right;
}

} // namespace sdfeel

// The functions of one model's library.
#define SDFEEL_ENTRY(NET)                                                                          \
    extern "C" int sdfeel_train(const SdfeelTasks *tasks, int threads) {                           \
        return sdfeel::for_each<NET>(tasks->count, threads, [&](NET &net, int64_t i) {             \
            sdfeel::train_one(net, *tasks, i);                                                     \
        });                                                                                        \
    }                                                                                              \
    extern "C" int sdfeel_measure(const SdfeelMeasure *measure, int threads) {                     \
        const int64_t blocks = (measure->count + measure->block - 1) / measure->block;             \
        return sdfeel::for_each<NET>(blocks, threads, [&](NET &net, int64_t i) {                   \
            sdfeel::measure_block(net, *measure, i);                                               \
        });                                                                                        \
    }                                                                                              \
    extern "C" int64_t sdfeel_workspace() { return int64_t(sizeof(NET)); }                         \
    extern "C" void sdfeel_release() { sdfeel::spare<NET>.release(); }                             \
    extern "C" void sdfeel_philox(uint64_t key, uint64_t client, uint64_t step, uint64_t layer,    \
                                  uint64_t block, uint64_t *words) {                               \
        sdfeel::philox(sdfeel::Address{key, client, step}, layer, block, words);                   \
    }
