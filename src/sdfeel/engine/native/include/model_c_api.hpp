// The plain C functions by which Python trains and measures one model. They use several threads,
// each of which works on one client at a time.
#pragma once

#include "crowd.hpp"
#include "stream.hpp"

namespace sdfeel {

// Run act(net, i) for i in 0 ... count - 1, each once, on up to `threads` threads.
template <class Net, class Act> int for_each(int64_t count, int threads, const Act &act) {
    int64_t next = 0;
    bool failed = false;
    const auto has_failed = [&] { return __atomic_load_n(&failed, __ATOMIC_SEQ_CST); };
    const auto work = [&] {
        Net *const net = spare<Net>.take();
        if (!net) {
            __atomic_store_n(&failed, true, __ATOMIC_SEQ_CST);
            return;
        }
        for (int64_t i; (i = __atomic_fetch_add(&next, 1, __ATOMIC_SEQ_CST)) < count &&
                        !has_failed();)
            act(*net, i);
        spare<Net>.give(net);
    };
    Crew<decltype(work)> others(work);
    others.send(int(threads < count ? threads : count) - 1);
    work(); // all of it, if no other thread could be started
    others.wait();
    return has_failed() ? NO_MEMORY : 0;
}

// Bring some rows of a matrix from torch's order into the stages' own orders, or BACK.
template <bool BACK, class Net, class T>
int turn(const T *from, T *to, const int64_t *rows, int64_t count, int64_t parameters, int threads) {
    return for_each<Net>(count, threads, [&](Net &, int64_t i) {
        const int64_t place = rows[i] * parameters;
        Net::template turn<BACK>(from + place, to + place, parameters);
    });
}

} // namespace sdfeel

// The functions of one model's library.
#define SDFEEL_MODEL_C_API(NET)                                                                    \
    extern "C" int sdfeel_train(const SdfeelTasks *tasks, int threads) {                           \
        return sdfeel::for_each<NET>(tasks->count, threads, [&](NET &net, int64_t i) {             \
            sdfeel::train_one(net, *tasks, i);                                                     \
        });                                                                                        \
    }                                                                                              \
    extern "C" void *sdfeel_begin(const SdfeelTasks *tasks, int threads) {                         \
        return new sdfeel::Stream<NET>(*tasks, threads);                                           \
    }                                                                                              \
    extern "C" int sdfeel_wait(void *stream, int64_t i) {                                          \
        return static_cast<sdfeel::Stream<NET> *>(stream)->wait(i);                                \
    }                                                                                              \
    extern "C" void sdfeel_describe(void *stream, int64_t count) {                                 \
        static_cast<sdfeel::Stream<NET> *>(stream)->describe(count);                               \
    }                                                                                              \
    extern "C" void sdfeel_give_back(void *stream, int64_t count) {                                \
        static_cast<sdfeel::Stream<NET> *>(stream)->give_back(count);                              \
    }                                                                                              \
    extern "C" void sdfeel_end(void *stream) {                                                     \
        delete static_cast<sdfeel::Stream<NET> *>(stream);                                         \
    }                                                                                              \
    extern "C" void *sdfeel_gather(const SdfeelCrowd *crowd, int threads, void *before) {          \
        return new sdfeel::Crowd<NET>(*crowd, threads, static_cast<sdfeel::Crowd<NET> *>(before)); \
    }                                                                                              \
    extern "C" int64_t sdfeel_fold(void *crowd, int64_t until) {                                   \
        return static_cast<sdfeel::Crowd<NET> *>(crowd)->fold(until);                              \
    }                                                                                              \
    extern "C" void sdfeel_disperse(void *crowd) {                                                 \
        delete static_cast<sdfeel::Crowd<NET> *>(crowd);                                           \
    }                                                                                              \
    extern "C" int sdfeel_orders() { return NET::ORDERS; }                                         \
    extern "C" int sdfeel_order(const float *from, float *to, const int64_t *rows, int64_t count,  \
                                int64_t parameters, int threads) {                                 \
        return sdfeel::turn<false, NET>(from, to, rows, count, parameters, threads);               \
    }                                                                                              \
    extern "C" int sdfeel_restore(const double *from, double *to, const int64_t *rows,             \
                                  int64_t count, int64_t parameters, int threads) {                \
        return sdfeel::turn<true, NET>(from, to, rows, count, parameters, threads);                \
    }                                                                                              \
    extern "C" void sdfeel_shuffle(const uint32_t *seed, int64_t words, uint64_t client,           \
                                   uint64_t turn, int64_t *rows, int64_t count) {                  \
        sdfeel::shuffle(seed, words, client, turn, rows, count);                                   \
    }                                                                                              \
    extern "C" int sdfeel_measure(const SdfeelMeasure *measure, int threads) {                     \
        const int64_t blocks = (measure->count + measure->block - 1) / measure->block;             \
        return sdfeel::for_each<NET>(blocks, threads, [&](NET &net, int64_t i) {                   \
            sdfeel::measure_block(net, *measure, i);                                               \
        });                                                                                        \
    }                                                                                              \
    extern "C" int64_t sdfeel_workspace() { return int64_t(sizeof(NET)); }                         \
    extern "C" int sdfeel_fuses() { return sdfeel::FUSES; }                                        \
    extern "C" void sdfeel_release() { sdfeel::spare<NET>.release(); }                             \
    extern "C" void sdfeel_philox(uint64_t key, uint64_t client, uint64_t step, uint64_t layer,    \
                                  uint64_t block, uint64_t *words) {                               \
        sdfeel::philox(sdfeel::Address{key, client, step}, layer, block, words);                   \
    }
