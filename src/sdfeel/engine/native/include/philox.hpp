// Philox4x64-10, word for word as NumPy's: random words by address, without a stream.
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.)
#pragma once

#include <cstdint>

namespace sdfeel {

// Where the training is: what the words of one step depend on, besides the layer.
struct Address {
    uint64_t key;    // of the run, from its seed
    uint64_t client;
    uint64_t step;   // mini-batches that the client has taken before
};

// The four words of one block. NumPy counts before it draws, so blocks begin at 1.
inline void philox(const Address &at, uint64_t layer, uint64_t block, uint64_t words[4]) {
    typedef unsigned __int128 wide;
    uint64_t a = block, b = at.step, c = layer, d = 0, key = at.key, other = at.client;
    for (int round = 0; round < 10; round++) {
        const wide p = wide(0xD2E7470EE14C6C93u) * a, q = wide(0xCA5A826395121157u) * c;
        a = uint64_t(q >> 64) ^ b ^ key;
        c = uint64_t(p >> 64) ^ d ^ other;
        b = uint64_t(q);
        d = uint64_t(p);
        key += 0x9E3779B97F4A7C15u;
        other += 0xBB67AE8584CAA73Bu;
    }
    words[0] = a, words[1] = b, words[2] = c, words[3] = d;
}

} // namespace sdfeel
