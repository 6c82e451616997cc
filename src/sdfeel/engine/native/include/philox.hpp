// Philox4x64-10, word for word as NumPy's: random words by address, without a stream.
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.)
#pragma once

#include "vectors.hpp"

namespace sdfeel {

// Where the training is: what the words of one step depend on, besides the layer.
struct Address {
    uint64_t key;    // of the run, from its seed
    uint64_t client;
    uint64_t step;   // mini-batches that the client has taken before
};

struct Product {
    uint64_t high, low;
};
SDFEEL_INLINE Product product(uint64_t a, uint64_t b) {
#if defined(__SIZEOF_INT128__)
    const unsigned __int128 whole = (unsigned __int128)a * b;
    return {uint64_t(whole >> 64), uint64_t(whole)};
#else
    const uint64_t a0 = uint32_t(a), a1 = a >> 32, b0 = uint32_t(b), b1 = b >> 32;
    const uint64_t middle = (a0 * b0 >> 32) + uint32_t(a0 * b1) + uint32_t(a1 * b0);
    return {a1 * b1 + (a0 * b1 >> 32) + (a1 * b0 >> 32) + (middle >> 32), a * b};
#endif
}

// The four words of one block. NumPy counts before it draws, so blocks begin at 1.
inline void philox(const Address &at, uint64_t layer, uint64_t block, uint64_t words[4]) {
    uint64_t a = block, b = at.step, c = layer, d = 0, key = at.key, other = at.client;
    for (int round = 0; round < 10; round++) {
        const Product p = product(0xD2E7470EE14C6C93u, a), q = product(0xCA5A826395121157u, c);
        a = q.high ^ b ^ key;
        c = p.high ^ d ^ other;
        b = q.low;
        d = p.low;
        key += 0x9E3779B97F4A7C15u;
        other += 0xBB67AE8584CAA73Bu;
    }
    words[0] = a, words[1] = b, words[2] = c, words[3] = d;
}

} // namespace sdfeel
