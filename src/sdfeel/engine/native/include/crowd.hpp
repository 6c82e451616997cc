// Many clients in one call: their examples are picked, their models trained, and all of it added to
// their servers' sums, in the clients' order, without Python in between.
//
// Threads take a few tasks at a time. Models are added up as in weighted_sums.hpp, one task after
// the other. A thread whose tasks are next adds their models itself, from where they are. Other
// threads leave theirs in a room, and the thread whose tasks come before them adds those, too.
//
// If there are few starts and sums for many clients, all rows are in the orders of the model's
// stages (`ordered`), and nothing but starts and sums is ever rearranged.
#pragma once

#include "weighted_sums.hpp"
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
    const double *weights;         //   and the model's weight in it,
    const uint8_t *opens;          //   and whether it is the first term of that sum
    double *totals;                // (sums, parameters) which may be anything at first
    int64_t updates;               // not 0: what is added is the model less its start
    int64_t ordered;               // not 0: starts, models and totals are in the stages' own orders
    float *const *alone;           // (sums) not null: each sum is one model, which counts in full, and
};                                 //   is written here instead of to `totals`
}

namespace sdfeel {

constexpr uint8_t BAD_ROWS = 2; // in `finite`: the client has rows beyond the data
constexpr int STOPPED = 4;      // a task has failed: its place in `finite` says how
constexpr int NOT_YET = 5;      // ask again
constexpr long LOOK = 50;       // milliseconds after which a caller may look at other things

template <class Net> class Crowd : public OnHeap {
  public:
    // The threads of `before` come over when they find nothing more to do there: so there is always
    // work for every thread, and there are never more of them than cores. Null: there is none.
    Crowd(const SdfeelCrowd &asked, int threads, Crowd *before)
        : call(asked), chunks((asked.tasks.count + asked.chunk - 1) / asked.chunk),
          idle(asked.tasks.rooms / asked.chunk), room(asked.tasks.parameters * asked.chunk),
          places(static_cast<float **>(calloc(size_t(chunks + idle) + 1, sizeof(float *)))),
          crew({this}) {
        if (threads > chunks) threads = int(chunks);
        if (!places) {
            failure = NO_MEMORY;
            return;
        }
        for (int64_t n = 0; n < idle; n++) places[chunks + n] = call.tasks.models + n * room;
        const int coming = before ? before->invite(*this, threads) : 0;
        const int sent = crew.send(threads - coming);
        if (threads && sent + coming == 0) failure = NO_THREAD;
        const Held held(lock);
        at_work += sent;
    }
    ~Crowd() {
        if (from) from->end();
        {
            const Held held(lock);
            stopped = true;
        }
        vacated.tell_all();
        crew.wait();
        if (to) {
            to->send_others();
            to->end();
        }
        free(places);
    }
    Crowd(const Crowd &) = delete;

    // Wait for a moment until the models of all tasks before `until` are added. Returns how many
    // are, or a negative number: NOT_YET, or the reason why they never will be.
    int64_t fold(int64_t until) {
        const Held held(lock);
        awaited = until;
        held.wait(moved, [&] { return added >= until || bad || failure; }, LOOK);
        return added >= until ? added : -(bad ? STOPPED : failure ? failure : NOT_YET);
    }

  private:
    static constexpr int64_t PIECE = 1024; // numbers that are looked at, and added, at a time
    const SdfeelCrowd call;
    const int64_t chunks;
    int64_t idle;          // rooms that nobody uses
    const int64_t room;    // numbers in one: the models of a chunk
    float **const places;  // (chunks) where trained models wait for their turn; (rooms) idle rooms
    Lock lock;
    Condition moved, vacated;
    int64_t next = 0, turn = 0; // chunks that were taken up; the one that is to be added
    int64_t added = 0, awaited = 0; // tasks
    int failure = 0;
    bool stopped = false, bad = false; // bad: the next task to be added has failed
    int at_work = 0; // threads that have not left, or are still to come
    // By which threads go from one crowd to the next. Both point to it, and the last to end deletes
    // it.
    struct Way : OnHeap {
        Lock lock;
        Crowd *next;
        int expected; // threads that are still to go
        bool ended = false;
        Way(Crowd *next, int expected) : next(next), expected(expected) {}
        void go() {
            const Held held(lock);
            if (ended || expected == 0) return;
            expected--;
            if (!next->crew.come()) next->fail(nullptr);
        }
        // The threads that have not come by now will not come any more: send others instead.
        void send_others() {
            const Held held(lock);
            if (!ended && expected && !next->crew.send(expected)) next->fail(nullptr);
        }
        void end() {
            {
                const Held held(lock);
                if (!ended) {
                    ended = true;
                    return;
                }
            }
            delete this;
        }
    } *from = nullptr, *to = nullptr;
    struct Work {
        Crowd *crowd;
        void operator()() const {
            crowd->work();
            crowd->leave();
        }
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
        float *models = nullptr;
        for (int64_t chunk; net && (chunk = taken(models)) >= 0;) {
            const int64_t begin = chunk * call.chunk, end = end_of(chunk);
            bool kept = false; // the model is in the workspace alone
            for (int64_t i = begin; i < end; i++) {
                if (!train(*net, picks, i)) return fail(net);
                kept = call.chunk == 1 && in_turn(chunk);
                if (!kept) save(*net, i, models + (i - begin) * call.tasks.parameters);
            }
            finish(chunk, models, kept ? net : nullptr);
        }
        if (net) spare<Net>.give(net);
        else fail(net);
    }

    // How many threads will come over to the next crowd: `most` at most.
    int invite(Crowd &next, int most) {
        const Held held(lock);
        const int coming = at_work < most ? at_work : most;
        if (to || coming <= 0 || !(to = new Way(&next, coming))) return 0;
        next.from = to;
        next.at_work = coming;
        return coming;
    }
    // A thread has nothing more to do here.
    void leave() {
        {
            const Held held(lock);
            at_work--;
            if (!to) return;
        }
        to->go();
    }

    void fail(Net *net) {
        if (net) spare<Net>.give(net);
        const Held held(lock);
        failure = NO_MEMORY;
        moved.tell_all();
        vacated.tell_all();
    }

    // The next chunk and a room for its models: the room used last, which is still in the caches.
    // -1 if there is nothing more to do. A thread that has a chunk has a room, too: so the one
    // whose turn it is never waits.
    int64_t taken(float *&models) {
        const Held held(lock);
        const auto over = [&] { return next == chunks || stopped || bad || failure; };
        held.wait(vacated, [&] { return idle || over(); });
        if (over()) return -1;
        models = places[chunks + --idle];
        return next++;
    }

    bool in_turn(int64_t chunk) {
        const Held held(lock);
        return chunk == turn;
    }
    // A chunk is trained. If it is next in turn, this thread adds it up, and then all chunks that
    // wait behind it; if not, this thread leaves it to another one.
    void finish(int64_t chunk, float *models, Net *keeper) {
        {
            const Held held(lock);
            if (chunk != turn) {
                places[chunk] = models;
                return;
            }
        }
        for (; models; models = next_turn(models), keeper = nullptr, chunk++)
            for (int64_t i = chunk * call.chunk, n = 0; i < end_of(chunk); i++, n++)
                if (!add(i, models + n * call.tasks.parameters, keeper)) return fail_at(i);
    }
    void fail_at(int64_t i) {
        const Held held(lock);
        added = i;
        bad = true;
        moved.tell_all();
        vacated.tell_all();
    }
    // The models of the next chunk, if they wait already; `vacant` is a room that is no longer
    // needed.
    float *next_turn(float *vacant) {
        const Held held(lock);
        places[chunks + idle++] = vacant;
        vacated.tell_one();
        added = end_of(turn++);
        if (added >= awaited) moved.tell_all();
        return turn < chunks ? places[turn] : nullptr;
    }

    bool train(Net &net, Picks &picks, int64_t i) {
        const SdfeelTasks &tasks = call.tasks;
        const int64_t size = call.part_sizes[tasks.clients[i]], needed = tasks.steps[i] * tasks.sizes[i];
        if (!picks.fits(size + needed)) return false;
        tasks.finite[i] = pick(i, picks.rows, picks.rows + size) ? 1 : BAD_ROWS;
        const_cast<const int64_t **>(tasks.picked)[i] = picks.rows + size;
        if (tasks.finite[i] != 1) return true;
        if (Net::ORDERS && call.ordered) train_task<Net::ORDERS>(net, tasks, i);
        else train_task<false>(net, tasks, i);
        return true;
    }
    // The rows of a task, as batches.py picks them; false if one of them is not in the data.
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

    int64_t end_of(int64_t chunk) const {
        const int64_t end = (chunk + 1) * call.chunk;
        return end < call.tasks.count ? end : call.tasks.count;
    }
    void save(Net &net, int64_t i, float *model) {
        keep_unowned<Net>(call.tasks, i, model);
        if (Net::ORDERS && call.ordered) net.write_ordered(model);
        else net.write(model);
    }

    // Add the model of task i to its sums; false if it has failed. It is in `keeper`, if there is
    // one, and otherwise in `model`.
    bool add(int64_t i, float *model, Net *keeper) {
        if (call.tasks.finite[i] != 1) return false;
        const auto piece = [&](int64_t first, const float *numbers, int64_t count) {
            for (int64_t p = 0; p < count; p += PIECE)
                add_piece(i, first + p, numbers + p, count - p < PIECE ? count - p : PIECE);
        };
        const int64_t all = call.tasks.parameters;
        if (keeper && Net::ORDERS && call.ordered) {
            keep_unowned<Net>(call.tasks, i, model);
            keeper->each_piece(model, all, piece);
        } else {
            if (keeper) save(*keeper, i, model);
            piece(0, model, all);
        }
        return call.tasks.finite[i] == 1;
    }
    // A few numbers of a model, from `first` on.
    void add_piece(int64_t i, int64_t first, const float *numbers, int64_t count) {
        const SdfeelTasks &tasks = call.tasks;
        if (!finite(numbers, count)) tasks.finite[i] = 0;
        float updates[PIECE];
        if (call.updates) {
            const float *const start = tasks.starts[i] + first;
            for (int64_t p = 0; p < count; p++) updates[p] = numbers[p] - start[p];
            numbers = updates;
        }
        for (int64_t n = call.begins[i]; call.alone && n < call.begins[i + 1]; n++) {
            float *const to = call.alone[call.into[n]] + first;
            for (int64_t p = 0; p < count; p++) to[p] = numbers[p] + 0.0f; // no zero is negative
        }
        for (int64_t n = call.begins[i]; !call.alone && n < call.begins[i + 1]; n++)
            (call.opens[n] ? add_multiple<true> : add_multiple<false>)(
                call.totals + call.into[n] * tasks.parameters + first, numbers, call.weights[n],
                count);
    }
};

} // namespace sdfeel
