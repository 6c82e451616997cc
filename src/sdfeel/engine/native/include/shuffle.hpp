// The order in which a client sees its examples: NumPy's, to the bit (batches.py).
//
// `Generator(PCG64(SeedSequence(words))).permutation(rows)`, without Python: a million clients
// shuffle their examples in every round. Python compares a few orders with NumPy's before it relies
// on this.
#pragma once

#include <stdint.h>

namespace sdfeel {

// NumPy's SeedSequence: a few words, mixed until every bit depends on all of them.
class Entropy {
  public:
    void add(uint64_t number) { // as many words as it has, at least one
        take(uint32_t(number));
        if (number >> 32) take(uint32_t(number >> 32));
    }
    void take(uint32_t word) {
        if (count < POOL) {
            pool[count] = hashed(word);
        } else {
            if (count == POOL) stir();
            for (uint32_t &to : pool) to = mixed(to, hashed(word));
        }
        count++;
    }
    // Four words of 64 bits.
    void finish(uint64_t (&words)[4]) {
        for (; count < POOL; count++) pool[count] = hashed(0);
        if (count == POOL) stir();
        uint32_t factor = 0x8b51f9dd;
        for (int n = 0; n < 8; n++) {
            uint32_t value = pool[n % POOL] ^ factor;
            factor *= 0x58f38ded;
            value *= factor;
            value ^= value >> 16;
            words[n / 2] = n % 2 ? words[n / 2] | uint64_t(value) << 32 : value;
        }
    }

  private:
    static constexpr int POOL = 4;
    uint32_t pool[POOL] = {}, factor = 0x43b0d7e5;
    int count = 0;

    uint32_t hashed(uint32_t value) {
        value ^= factor;
        factor *= 0x931e8875;
        value *= factor;
        return value ^ value >> 16;
    }
    static uint32_t mixed(uint32_t x, uint32_t y) {
        const uint32_t found = 0xca01f9dd * x - 0x4973f715 * y;
        return found ^ found >> 16;
    }
    void stir() {
        for (int from = 0; from < POOL; from++)
            for (int to = 0; to < POOL; to++)
                if (from != to) pool[to] = mixed(pool[to], hashed(pool[from]));
    }
};

// NumPy's PCG64, as two halves: compilers for 32-bit CPUs have no numbers of 128 bits.
class Pcg64 {
  public:
    explicit Pcg64(const uint64_t (&words)[4])
        : inc{words[2] << 1 | words[3] >> 63, words[3] << 1 | 1} {
        step();
        state = sum(state, Wide{words[0], words[1]});
        step();
    }
    // A random number with as many bits as `most`, which is at least 1.
    uint32_t as_long_as(uint32_t most) { return half() & UINT32_MAX >> __builtin_clz(most); }

  private:
    struct Wide {
        uint64_t high, low;
    };
    Wide state{0, 0}, inc;
    uint32_t rest = 0; // the upper half of the last word
    bool left = false;

    static Wide sum(Wide a, Wide b) {
        const uint64_t low = a.low + b.low;
        return Wide{a.high + b.high + (low < a.low), low};
    }
    static Wide product(uint64_t a, uint64_t b) {
#if defined(__SIZEOF_INT128__)
        const auto wide = static_cast<unsigned __int128>(a) * b;
        return Wide{uint64_t(wide >> 64), uint64_t(wide)};
#endif
        const uint64_t a0 = uint32_t(a), a1 = a >> 32, b0 = uint32_t(b), b1 = b >> 32;
        const uint64_t low = a0 * b0, middle = a1 * b0 + (low >> 32);
        const uint64_t other = a0 * b1 + uint32_t(middle);
        return Wide{a1 * b1 + (middle >> 32) + (other >> 32), other << 32 | uint32_t(low)};
    }
    void step() {
        constexpr uint64_t HIGH = 2549297995355413924u, LOW = 4865540595714422341u;
        Wide next = product(state.low, LOW);
        next.high += state.high * LOW + state.low * HIGH;
        state = sum(next, inc);
    }
    uint32_t half() {
        if (left) {
            left = false;
            return rest;
        }
        step();
        const uint64_t folded = state.high ^ state.low;
        const int turn = int(state.high >> 58);
        const uint64_t word = folded >> turn | folded << (-turn & 63);
        rest = uint32_t(word >> 32);
        left = true;
        return uint32_t(word);
    }
};

// Put `count` rows in the order of a client's pass `turn`.
inline void shuffle(const uint32_t *seed, int64_t words, uint64_t client, uint64_t turn,
                    int64_t *rows, int64_t count) {
    Entropy entropy;
    for (int64_t n = 0; n < words; n++) entropy.take(seed[n]);
    entropy.add(client);
    entropy.add(turn);
    uint64_t state[4];
    entropy.finish(state);
    Pcg64 draws(state);
    for (int64_t i = count - 1; i > 0;) {
        // A number that is too large is drawn again. No branch, which the CPU could not guess.
        const int64_t found = draws.as_long_as(uint32_t(i)), fits = found <= i;
        const int64_t j = i + (found - i) * fits, row = rows[i];
        rows[i] = rows[j];
        rows[j] = row;
        i -= fits;
    }
}

} // namespace sdfeel
