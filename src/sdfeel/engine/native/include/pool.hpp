// Threads that wait for work. Starting them anew took milliseconds of every round.
//
// Not OpenMP's: that pool would be torch's, too, and a process that forks after using it hangs.
// Here a forked process finds that the pool is its parent's, and makes its own.
#pragma once

#include <unistd.h>

#include "threads.hpp"

namespace sdfeel {

// Something to do once. The thread that has done it deletes it.
struct Job : OnHeap {
    void (*act)(void *what);
    void *what;
    Job *next = nullptr;
    Job(void (*act)(void *), void *what) : act(act), what(what) {}
};

class Pool : public OnHeap {
  public:
    // The pool of this process, or null. It is never destroyed: its threads end with the process.
    static Pool *mine() {
        static Pool *known = nullptr; // no lock, which a fork might find held
        Pool *pool = __atomic_load_n(&known, __ATOMIC_SEQ_CST);
        if (pool && pool->owner == getpid()) return pool;
        Pool *const own = new Pool;
        if (!own || __atomic_compare_exchange_n(&known, &pool, own, false, __ATOMIC_SEQ_CST,
                                                __ATOMIC_SEQ_CST))
            return own;
        delete own; // another thread was faster
        return pool;
    }

    // Have one more thread do act(what); false if none can be started. `mine`: the calling thread
    // is one of the pool's, is about to finish its job, and will do this next.
    bool start(void (*act)(void *), void *what, bool mine = false) {
        Job *const job = new Job(act, what);
        if (!job) return false;
        const Held held(lock);
        if (!mine && idle <= waiting && !run_detached(serve, this)) {
            delete job;
            return false;
        }
        (last ? last->next : first) = job;
        last = job;
        if (waiting++ == 0 && !mine) more.tell_one(); // a thread that takes a job wakes the next
        return true;
    }

  private:
    // How many others a woken thread wakes. If the calling thread woke all of them while it still
    // keeps its own core busy, the system would put two on the same core, and move neither for a
    // while.
    static constexpr size_t WAKES = 2;
    const pid_t owner = getpid();
    Lock lock;
    Condition more;
    Job *first = nullptr, *last = nullptr;
    size_t waiting = 0, idle = 0; // jobs, threads

    static void *serve(void *pool) {
        static_cast<Pool *>(pool)->serve();
        return nullptr;
    }
    void serve() {
        const Held held(lock);
        for (;;) {
            idle++;
            held.wait(more, [this] { return first != nullptr; });
            idle--;
            Job *const job = first;
            first = job->next;
            if (!first) last = nullptr;
            waiting--;
            for (size_t n = 0; n < waiting && n < WAKES; n++) more.tell_one();
            held.without([&] {
                job->act(job->what);
                delete job;
            });
        }
    }
};

// Threads that do the same work; `wait` returns when all of them have left it.
template <class Work> class Crew {
  public:
    explicit Crew(const Work &work) : work(work) {}

    // Have up to `count` threads of the pool do the work; returns how many there were.
    int send(int count) {
        int sent = 0;
        Pool *const pool = count > 0 ? Pool::mine() : nullptr;
        for (; pool && sent < count; sent++) {
            {
                const Held held(lock);
                present++;
            }
            if (!pool->start(take_part, this)) {
                leave();
                break;
            }
        }
        return sent;
    }
    // The calling thread, one of the pool's, will do the work after its present job; false if it
    // cannot.
    bool come() {
        {
            const Held held(lock);
            present++;
        }
        const bool comes = Pool::mine()->start(take_part, this, true);
        if (!comes) leave();
        return comes;
    }
    void wait() {
        const Held held(lock);
        held.wait(empty, [this] { return present == 0; });
    }

  private:
    const Work work;
    Lock lock;
    Condition empty;
    int present = 0;

    static void take_part(void *crew) {
        static_cast<Crew *>(crew)->work();
        static_cast<Crew *>(crew)->leave();
    }
    void leave() {
        const Held held(lock); // whoever waits may destroy us after this
        if (--present == 0) empty.tell_all();
    }
};

} // namespace sdfeel
