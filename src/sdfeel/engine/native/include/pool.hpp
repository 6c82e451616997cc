// Threads that wait for work. Starting them anew for every round took milliseconds of it.
//
// Not OpenMP's: that pool would be torch's, too, and a process that forks after using it hangs.
// Here a forked process finds that the pool is its parent's, and makes its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace sdfeel {

class Pool {
  public:
    // The pool of this process. It is never destroyed: its threads end with the process.
    static Pool &mine() {
        static std::atomic<Pool *> known{nullptr}; // no lock, which a fork might find held
        Pool *pool = known;
        if (pool && pool->owner == getpid()) return *pool;
        Pool *const own = new Pool;
        if (known.compare_exchange_strong(pool, own)) return *own;
        delete own; // another thread was faster
        return *pool;
    }

    // Have one more thread do `job`; false if there is none to be had.
    bool start(std::function<void()> job) {
        const std::lock_guard<std::mutex> held(lock);
        jobs.push_back(std::move(job));
        if (idle < jobs.size()) {
            try {
                std::thread([this] { serve(); }).detach();
            } catch (const std::system_error &) {
                jobs.pop_back();
                return false;
            }
        }
        more.notify_one();
        return true;
    }

  private:
    const pid_t owner = getpid();
    std::mutex lock;
    std::condition_variable more;
    std::deque<std::function<void()>> jobs;
    size_t idle = 0;

    void serve() {
        std::unique_lock<std::mutex> held(lock);
        for (;;) {
            idle++;
            more.wait(held, [this] { return !jobs.empty(); });
            idle--;
            const std::function<void()> job = std::move(jobs.front());
            jobs.pop_front();
            held.unlock();
            job();
            held.lock();
        }
    }
};

// Threads at one piece of work, until all of them have left it.
class Crew {
  public:
    // Up to `count` threads of the pool; the number that could be had.
    int send(int count, const std::function<void()> &work) {
        int sent = 0;
        for (; sent < count; sent++) {
            {
                const std::lock_guard<std::mutex> held(lock);
                present++;
            }
            const auto job = [this, work] {
                work();
                leave();
            };
            if (!Pool::mine().start(job)) {
                leave();
                break;
            }
        }
        return sent;
    }
    void wait() {
        std::unique_lock<std::mutex> held(lock);
        empty.wait(held, [this] { return present == 0; });
    }

  private:
    std::mutex lock;
    std::condition_variable empty;
    int present = 0;

    void leave() {
        const std::lock_guard<std::mutex> held(lock); // whoever waits may destroy us after this
        if (--present == 0) empty.notify_all();
    }
};

} // namespace sdfeel
