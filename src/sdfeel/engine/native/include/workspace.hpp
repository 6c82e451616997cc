// The memory that a thread works in, kept from one task to the next.
#pragma once

#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace sdfeel {

template <class Net> struct Freed {
    void operator()(Net *net) const {
        net->~Net();
        std::free(net);
    }
};

template <class Net> using Workspace = std::unique_ptr<Net, Freed<Net>>;

// Workspaces of earlier calls, for later ones: large models would fault in their pages anew for
// every call. A client leaves nothing behind that the next one could see.
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

} // namespace sdfeel
