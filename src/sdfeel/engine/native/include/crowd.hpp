// Many clients in one call: their examples are picked, their models trained, and all of it added to
// their servers' sums, in the clients' order, without Python in between.
//
// Threads take a few tasks at a time and put models into a ring of rooms; the caller adds them up as
// combine.py does: one task after the other, in double, each product and sum rounded once.
#pragma once

#include "shuffle.hpp"
#include "stream.hpp"

extern "C" {

// Kept in step with `CrowdCall` of crowds.py.
struct SdfeelCrowd {
    SdfeelTasks tasks;             // their `picked` are filled in here
    const int64_t *const *parts;   // each client's rows of the data
    const int64_t *part_sizes;
    int64_t examples;              // of the data
    const uint32_t *seed;          // words with which the address of every order begins
    int64_t words;
    int64_t chunk;                 // tasks that a thread takes at once; rooms are a multiple of it
    const int64_t *begins;         // (count + 1) where the entries of each task begin
    const int64_t *into;           // entries: which sum,
    const double *weights;         //   and what the model counts there
    double *totals;                // (sums, parameters)
    int64_t updates;               // not 0: what is added is the model less its start
};
}

namespace sdfeel {

constexpr uint8_t BAD_ROWS = 2; // in `finite`: the client has rows beyond the data
constexpr int STOPPED = 4;      // a task has failed: its place in `finite` says how

// total += weight * row
inline void add(double *total, const float *row, double weight, int64_t count) {
    int64_t p = 0;
#if defined(__FMA__) && defined(__GNUC__) && !defined(__clang__)
    typedef double Wide __attribute__((vector_size(32)));
    typedef double Loose __attribute__((vector_size(32), aligned(8), may_alias));
    typedef float Narrow __attribute__((vector_size(16), aligned(4), may_alias));
    const Wide weights{weight, weight, weight, weight};
    for (; p + 4 <= count; p += 4) {
        const Wide some = __builtin_convertvector(*reinterpret_cast<const Narrow *>(row + p), Wide);
        Loose *const to = reinterpret_cast<Loose *>(total + p);
        *to = __builtin_ia32_vfmaddpd256(weights, some, *to);
    }
#endif
    for (; p < count; p++) total[p] = fused(weight, double(row[p]), total[p]);
}

template <class Net> class Crowd : public OnHeap {
  public:
    Crowd(const SdfeelCrowd &asked, int threads)
        : call(asked), chunks((asked.tasks.count + asked.chunk - 1) / asked.chunk),
          rooms(asked.tasks.rooms / asked.chunk),
          done(static_cast<bool *>(calloc(size_t(chunks) + 1, 1))), crew({this}) {
        if (threads > chunks) threads = int(chunks);
        if (!done) failure = NO_MEMORY;
        else if (threads && crew.send(threads) == 0) failure = NO_THREAD;
    }
    ~Crowd() {
        {
            const Held held(lock);
            stopped = true;
        }
        moved.tell_all();
        crew.wait();
        free(done);
    }
    Crowd(const Crowd &) = delete;

    // Add the models of the next tasks, up to `until`. 0, or why it stopped before.
    int fold(int64_t until) {
        for (; folded < until; folded++) {
            const int64_t chunk = folded / call.chunk;
            if (folded % call.chunk == 0) {
                const Held held(lock);
                held.wait(trained, [&] { return failure || done[chunk]; });
                if (!done || !done[chunk]) return failure;
            }
            if (call.tasks.finite[folded] != 1) return STOPPED;
            add_one(folded);
            if ((folded + 1) % call.chunk == 0) {
                {
                    const Held held(lock);
                    used = chunk + 1;
                }
                moved.tell_all();
            }
        }
        return 0;
    }

  private:
    const SdfeelCrowd call;
    const int64_t chunks, rooms;
    Lock lock;
    Condition trained, moved;
    bool *const done; // (chunks)
    int64_t next = 0, used = 0; // chunks that were taken up, were added
    int64_t folded = 0;         // tasks
    int failure = 0;
    bool stopped = false;
    struct Work {
        Crowd *crowd;
        void operator()() const { crowd->work(); }
    };
    Crew<Work> crew;

    struct Picks { // rows of the data for one task, and space to shuffle
        int64_t *rows = nullptr;
        int64_t room = 0;
        Picks() = default;
        Picks(const Picks &) = delete;
        ~Picks() { free(rows); }
        bool fits(int64_t count) {
            if (count <= room) return true;
            free(rows);
            rows = static_cast<int64_t *>(malloc(size_t(count) * sizeof(int64_t)));
            room = rows ? count : 0;
            return rows;
        }
    };

    void work() {
        Net *const net = spare<Net>.take();
        Picks picks;
        for (int64_t chunk; net && (chunk = taken()) >= 0;) {
            const int64_t begin = chunk * call.chunk, end = begin + call.chunk;
            for (int64_t i = begin; i < end && i < call.tasks.count; i++)
                if (!train(*net, picks, i)) return fail(net);
            const Held held(lock);
            done[chunk] = true;
            trained.tell_all();
        }
        if (net) spare<Net>.give(net);
        else fail(net);
    }

    void fail(Net *net) {
        if (net) spare<Net>.give(net);
        const Held held(lock);
        failure = NO_MEMORY;
        trained.tell_all();
        moved.tell_all();
    }

    // The next chunk, as soon as there is room for it; -1 if there is nothing more to do.
    int64_t taken() {
        const Held held(lock);
        if (next == chunks || stopped || failure) return -1;
        const int64_t chunk = next++;
        held.wait(moved, [&] { return chunk < used + rooms || stopped || failure; });
        return stopped || failure ? -1 : chunk;
    }

    bool train(Net &net, Picks &picks, int64_t i) {
        const SdfeelTasks &tasks = call.tasks;
        const int64_t size = call.part_sizes[tasks.clients[i]], needed = tasks.steps[i] * tasks.sizes[i];
        if (!picks.fits(size + needed)) return false;
        if (!pick(i, picks.rows, picks.rows + size)) {
            tasks.finite[i] = BAD_ROWS;
            return true;
        }
        const_cast<const int64_t **>(tasks.picked)[i] = picks.rows + size;
        train_one(net, tasks, i);
        return true;
    }

    // The rows of a task, as batches.py has them; false if one of them is not in the data.
    bool pick(int64_t i, int64_t *order, int64_t *rows) const {
        const SdfeelTasks &tasks = call.tasks;
        const int64_t client = tasks.clients[i], count = call.part_sizes[client];
        const int64_t size = tasks.sizes[i], each = count / size; // steps of a pass
        const int64_t end = tasks.first[i] + tasks.steps[i];
        for (int64_t step = tasks.first[i]; step < end;) {
            const int64_t turn = step / each, position = step % each;
            const int64_t left = each - position, some = left < end - step ? left : end - step;
            memcpy(order, call.parts[client], size_t(count) * sizeof(int64_t));
            shuffle(call.seed, call.words, uint64_t(client), uint64_t(turn), order, count);
            for (int64_t n = 0; n < some * size; n++) {
                *rows = order[position * size + n];
                if (*rows < 0 || *rows >= call.examples) return false;
                rows++;
            }
            step += some;
        }
        return true;
    }

    void add_one(int64_t i) {
        const SdfeelTasks &tasks = call.tasks;
        float *const model = tasks.models + i % tasks.rooms * tasks.parameters;
        if (call.updates)
            for (int64_t p = 0; p < tasks.parameters; p++) model[p] -= tasks.starts[i][p];
        for (int64_t n = call.begins[i]; n < call.begins[i + 1]; n++)
            add(call.totals + call.into[n] * tasks.parameters, model, call.weights[n],
                tasks.parameters);
    }
};

} // namespace sdfeel
