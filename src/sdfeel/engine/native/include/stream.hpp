// Models that are trained ahead of whoever uses them, in order, in bounded memory.
//
// Trained models go to a ring of rooms. A thread takes the next task, waits until it is described and
// its room is free, and trains; the caller describes tasks a little ahead, waits for one after the
// other, uses its model, and gives the room back. So threads wait for one another only when the
// round is over, and not at all for what the caller does beside them.
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "pool.hpp"
#include "tasks.hpp"
#include "workspace.hpp"

namespace sdfeel {

constexpr int NO_MEMORY = 1, NO_THREAD = 2;

template <class Net> class Stream {
  public:
    Stream(const SdfeelTasks &asked, int threads) : tasks(asked), done(size_t(asked.count), false) {
        if (threads > tasks.count) threads = int(tasks.count);
        if (crew.send(threads, [this] { work(); }) == 0) failure = NO_THREAD;
    }
    ~Stream() {
        {
            const std::lock_guard<std::mutex> held(lock);
            stopped = true;
        }
        moved.notify_all();
        crew.wait();
    }

    // Wait until task i is trained. 0, or why it never will be.
    int wait(int64_t i) {
        std::unique_lock<std::mutex> held(lock);
        trained.wait(held, [&] { return done[size_t(i)] || failure; });
        return done[size_t(i)] ? 0 : failure;
    }

    // The first `count` tasks are described.
    void describe(int64_t count) { move_on(described, count); }

    // The models of the first `count` tasks are no longer needed.
    void give_back(int64_t count) { move_on(used, count); }

  private:
    const SdfeelTasks tasks;
    std::mutex lock;
    std::condition_variable trained, moved;
    std::vector<bool> done;
    int64_t described = 0, next = 0, used = 0; // tasks that are, were taken up, had their day
    int failure = 0;
    bool stopped = false;
    Crew crew;

    void work() {
        Workspace<Net> net = spare<Net>.take();
        if (!net) {
            const std::lock_guard<std::mutex> held(lock);
            failure = NO_MEMORY;
            trained.notify_all();
            return;
        }
        for (int64_t i; (i = taken()) >= 0;) {
            train_one(*net, tasks, i);
            const std::lock_guard<std::mutex> held(lock);
            done[size_t(i)] = true;
            trained.notify_all();
        }
        spare<Net>.give(std::move(net));
    }

    void move_on(int64_t &mark, int64_t count) {
        {
            const std::lock_guard<std::mutex> held(lock);
            mark = count;
        }
        moved.notify_all();
    }

    // The next task, as soon as it can be done; -1 if there is nothing more to do.
    int64_t taken() {
        std::unique_lock<std::mutex> held(lock);
        if (next == tasks.count || stopped || failure) return -1;
        const int64_t i = next++;
        moved.wait(held, [&] { return (i < described && i < used + tasks.rooms) || stopped; });
        return stopped ? -1 : i;
    }
};

} // namespace sdfeel
