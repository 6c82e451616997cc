// Models that are trained ahead of whoever uses them, in order, in bounded memory.
//
// Trained models go to a ring of rooms. A thread takes the next task, waits until it is described
// and its room is free, and trains; the caller describes tasks a little ahead, waits for one after
// the other, uses its model, and gives the room back. So threads wait for one another only when the
// round is over, and not at all for what the caller does meanwhile.
#pragma once

#include "pool.hpp"
#include "tasks.hpp"
#include "workspace.hpp"

namespace sdfeel {

constexpr int NO_MEMORY = 1, NO_THREAD = 2;

template <class Net> class Stream : public OnHeap {
  public:
    Stream(const SdfeelTasks &asked, int threads)
        : tasks(asked), done(static_cast<bool *>(calloc(size_t(asked.count) + 1, 1))), crew({this}) {
        if (threads > tasks.count) threads = int(tasks.count);
        if (!done) failure = NO_MEMORY;
        else if (crew.send(threads) == 0) failure = NO_THREAD;
    }
    ~Stream() {
        {
            const Held held(lock);
            stopped = true;
        }
        moved.tell_all();
        crew.wait();
        free(done);
    }
    Stream(const Stream &) = delete;

    // Wait until task i is trained. 0, or why it never will be.
    int wait(int64_t i) {
        const Held held(lock);
        held.wait(trained, [&] { return failure || done[i]; });
        return done && done[i] ? 0 : failure;
    }

    // The first `count` tasks are described.
    void describe(int64_t count) { move_on(described, count); }

    // The models of the first `count` tasks are no longer needed.
    void give_back(int64_t count) { move_on(used, count); }

  private:
    const SdfeelTasks tasks;
    Lock lock;
    Condition trained, moved;
    bool *const done; // (count)
    int64_t described = 0, next = 0, used = 0; // tasks described, taken up, used
    int failure = 0;
    bool stopped = false;
    struct Work {
        Stream *stream;
        void operator()() const { stream->work(); }
    };
    Crew<Work> crew;

    void work() {
        Net *const net = spare<Net>.take();
        if (!net) {
            const Held held(lock);
            failure = NO_MEMORY;
            trained.tell_all();
            return;
        }
        for (int64_t i; (i = taken()) >= 0;) {
            train_one(*net, tasks, i);
            const Held held(lock);
            done[i] = true;
            trained.tell_all();
        }
        spare<Net>.give(net);
    }

    void move_on(int64_t &mark, int64_t count) {
        {
            const Held held(lock);
            mark = count;
        }
        moved.tell_all();
    }

    // The next task, as soon as it can be done; -1 if there is nothing more to do.
    int64_t taken() {
        const Held held(lock);
        if (next == tasks.count || stopped || failure) return -1;
        const int64_t i = next++;
        held.wait(moved, [&] { return (i < described && i < used + tasks.rooms) || stopped; });
        return stopped ? -1 : i;
    }
};

} // namespace sdfeel
