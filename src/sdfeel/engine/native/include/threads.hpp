// Locks, conditions and memory of the system: what C++'s own library would wrap.
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

namespace sdfeel {

// The base of things that `new` makes: it gives null if there is no memory.
struct OnHeap {
    static void *operator new(size_t size) noexcept { return malloc(size); }
    static void operator delete(void *memory) { free(memory); }
};

struct Lock {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
};

struct Condition {
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    void tell_all() { pthread_cond_broadcast(&condition); }
    void tell_one() { pthread_cond_signal(&condition); }
};

// Holds a lock for as long as it lives.
class Held {
  public:
    explicit Held(Lock &lock) : mutex(&lock.mutex) { pthread_mutex_lock(mutex); }
    ~Held() { pthread_mutex_unlock(mutex); }
    Held(const Held &) = delete;

    template <class Ready> void wait(Condition &until, const Ready &ready) const {
        while (!ready()) pthread_cond_wait(&until.condition, mutex);
    }
    // The same, but for at most about that many milliseconds.
    template <class Ready>
    void wait(Condition &until, const Ready &ready, long milliseconds) const {
        constexpr long SECOND = 1000000000;
        timespec end;
        clock_gettime(CLOCK_REALTIME, &end);
        const long nanoseconds = end.tv_nsec + milliseconds % 1000 * 1000000;
        end.tv_sec += milliseconds / 1000 + nanoseconds / SECOND;
        end.tv_nsec = nanoseconds % SECOND;
        while (!ready() && !pthread_cond_timedwait(&until.condition, mutex, &end)) {}
    }
    template <class Act> void without(const Act &act) const {
        pthread_mutex_unlock(mutex);
        act();
        pthread_mutex_lock(mutex);
    }

  private:
    pthread_mutex_t *mutex;
};

// Holds a lock, but only if no other thread does: in a process that was forked while another thread
// held the lock, nobody would ever release it.
class HeldIfFree {
  public:
    explicit HeldIfFree(Lock &lock) : mutex(&lock.mutex), held(!pthread_mutex_trylock(mutex)) {}
    ~HeldIfFree() {
        if (held) pthread_mutex_unlock(mutex);
    }
    HeldIfFree(const HeldIfFree &) = delete;
    explicit operator bool() const { return held; }

  private:
    pthread_mutex_t *mutex;
    bool held;
};

// Run act(what) on a thread of its own; false if none can be started.
inline bool run_detached(void *(*act)(void *), void *what) {
    constexpr size_t STACK = 8 << 20; // as on most systems; on some it would be 128 KiB
    pthread_attr_t how;
    if (pthread_attr_init(&how)) return false;
    pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&how, STACK);
    pthread_t thread;
    const bool started = !pthread_create(&thread, &how, act, what);
    pthread_attr_destroy(&how);
    return started;
}

} // namespace sdfeel
