// The memory that a thread works in, kept from one task to the next.
#pragma once

#include <stdlib.h>
#include <sys/mman.h>

#include "threads.hpp"

namespace sdfeel {

// Workspaces of earlier calls, for later ones: large models would fault in their pages anew for
// every call. A client leaves nothing behind that the next one could see.
template <class Net> class Spare {
  public:
    // A workspace, all zeros when it is new: borders and spare lanes rely on it. Null if there is
    // no memory.
    Net *take() {
        {
            const HeldIfFree held(lock);
            if (held && count) return idle[--count];
        }
        constexpr bool LARGE = sizeof(Net) >= LARGE_PAGE;
        constexpr size_t PAGE = LARGE ? LARGE_PAGE : 4096;
        constexpr size_t SIZE = (sizeof(Net) + PAGE - 1) / PAGE * PAGE;
        static_assert(__is_trivial(Net), "all zeros is a workspace");
        void *const memory = aligned_alloc(PAGE, SIZE);
#if defined(MADV_HUGEPAGE)
        // A kernel walks through more small pages at once than a CPU can keep the addresses of.
        if (LARGE && memory) madvise(memory, SIZE, MADV_HUGEPAGE); // which the system may refuse
#endif
        return memory ? static_cast<Net *>(memset(memory, 0, SIZE)) : nullptr;
    }
    void give(Net *used) {
        {
            const HeldIfFree held(lock);
            if (held && count < MOST) {
                idle[count++] = used;
                return;
            }
        }
        free(used);
    }
    void release() {
        const HeldIfFree held(lock);
        if (held)
            while (count) free(idle[--count]);
    }

  private:
    static constexpr size_t LARGE_PAGE = 2 << 20;
    static constexpr int MOST = 1024; // more threads than that have to make their own again
    Lock lock;
    Net *idle[MOST] = {};
    int count = 0;
};
template <class Net> Spare<Net> spare;

} // namespace sdfeel
