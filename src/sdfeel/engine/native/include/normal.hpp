// Normal numbers of a PCG64, bit for bit as NumPy draws them.
//
// NumPy's ziggurat makes 99 of 100 numbers from a single random word. These are computed here, and
// all others by NumPy's own function. The tables come from that function, too: it is called with
// chosen words, which shows what number a word becomes, and from which size on one is not enough.
#pragma once

#include "philox.hpp"

namespace sdfeel {

typedef unsigned __int128 Wide;

// As `bitgen_t` of NumPy's C interface.
struct NumpyWords {
    void *from;
    uint64_t (*next_uint64)(void *);
    uint32_t (*next_uint32)(void *);
    double (*next_double)(void *);
    uint64_t (*next_raw)(void *);
};
typedef double (*NumpyNormal)(NumpyWords *);

// Something with `next`, as NumPy wants it.
template <class From> NumpyWords words_of(From &from) {
    const auto next = [](void *of) { return static_cast<From *>(of)->next(); };
    const auto half = [](void *of) { return uint32_t(static_cast<From *>(of)->next()); };
    const auto real = [](void *of) {
        return double(static_cast<From *>(of)->next() >> 11) * 0x1p-53;
    };
    return {&from, next, half, real, next};
}

// The words of a PCG64 (O'Neill 2014), in four chains that do not wait for one another.
class Pcg64 {
  public:
    Pcg64(Wide state, Wide increment) : end(state), increment(increment) { refill(); }
    static Pcg64 made(Wide state, Wide sequence) {
        const Wide increment = sequence << 1 | 1;
        return Pcg64((increment + state) * FACTOR + increment, increment);
    }
    uint64_t next() {
        if (at == COUNT) refill();
        return words[at++];
    }
    const uint64_t *ahead() { // the words that come next: at least one, `left` in all
        if (at == COUNT) refill();
        return words + at;
    }
    int left() const { return COUNT - at; }
    void skip(int count) { at += count; }
    Wide state() const {  // after the last word that was taken
        Wide found = begin;
        for (int i = 0; i < at; i++) found = found * FACTOR + increment;
        return found;
    }

  private:
    static constexpr Wide FACTOR = (Wide(0x2360ED051FC65DA4) << 64) | 0x4385DF649FCCF645;
    static constexpr int COUNT = 256, CHAINS = 4;
    Wide begin, end, increment; // of the words at hand
    uint64_t words[COUNT];
    int at;

    static SDFEEL_INLINE uint64_t word(Wide state) {
        const uint64_t high = uint64_t(state >> 64), mixed = high ^ uint64_t(state);
        const uint64_t turn = high >> 58;
        return mixed >> turn | mixed << (-turn & 63);
    }
    SDFEEL_NOINLINE void refill() {
        constexpr Wide LEAP = FACTOR * FACTOR * FACTOR * FACTOR;
        const Wide leap = ((FACTOR + 1) * FACTOR * FACTOR + FACTOR + 1) * increment;
        begin = end, at = 0;
        const Wide one = begin * FACTOR + increment, two = one * FACTOR + increment;
        const Wide three = two * FACTOR + increment;
        Wide chains[CHAINS] = {one, two, three, three * FACTOR + increment};
        for (int n = 0; n < COUNT; n += CHAINS) {
            end = chains[CHAINS - 1];
            SDFEEL_UNROLL for (int i = 0; i < CHAINS; i++) {
                words[n + i] = word(chains[i]);
                chains[i] = chains[i] * LEAP + leap;
            }
        }
    }
};

// The generator that NumPy seeds with 256 random bits: SeedSequence, then PCG64.
inline Pcg64 seeded(const uint8_t bits[32]) {
    uint32_t given[8], pool[4], turn = 0x43B0D7E5;
    int count = 0;
    for (int i = 0; i < 8; i++) { // the last byte is the lowest
        const uint8_t *four = bits + 28 - 4 * i;
        given[i] = uint32_t(four[0]) << 24 | uint32_t(four[1]) << 16 | uint32_t(four[2]) << 8 | four[3];
        if (given[i]) count = i + 1; // words that are zero at the upper end do not exist
    }
    const auto hashed = [](uint32_t value, uint32_t &turn, uint32_t factor) {
        value ^= turn;
        turn *= factor;
        value *= turn;
        return value ^ value >> 16;
    };
    const auto stirred = [&](uint32_t into, uint32_t value) {
        const uint32_t both = 0xCA01F9DD * into - 0x4973F715 * hashed(value, turn, 0x931E8875);
        return both ^ both >> 16;
    };
    for (int i = 0; i < 4; i++) pool[i] = hashed(i < count ? given[i] : 0, turn, 0x931E8875);
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++)
            if (from != to) pool[to] = stirred(pool[to], pool[from]);
    for (int from = 4; from < count; from++)
        for (int to = 0; to < 4; to++) pool[to] = stirred(pool[to], given[from]);
    uint64_t words[4];
    turn = 0x8B51F9DD;
    for (int i = 0; i < 4; i++) {
        words[i] = hashed(pool[i % 2 * 2], turn, 0x58F38DED);
        words[i] |= uint64_t(hashed(pool[i % 2 * 2 + 1], turn, 0x58F38DED)) << 32;
    }
    return Pcg64::made(Wide(words[0]) << 64 | words[1], Wide(words[2]) << 64 | words[3]);
}

// What number NumPy makes of a word, and from which size on it needs another word.
struct Ziggurat {
    static constexpr int LAYERS = 512; // 256, and their mirror image: bit 8 is the sign
    struct Layer {
        double unit;
        uint64_t enough; // sizes below this need no other word
    } layers[LAYERS];
    NumpyNormal numpy;

    explicit Ziggurat(NumpyNormal numpy) : numpy(numpy) {
        for (uint64_t layer = 0; layer < LAYERS; layer++) {
            Asked one{layer | 1 << 9};
            NumpyWords words = words_of(one);
            layers[layer].unit = numpy(&words);
            uint64_t low = 0, high = uint64_t(1) << 52;
            while (low < high) {
                const uint64_t middle = (low + high) / 2;
                Asked some{layer | middle << 9};
                words = words_of(some);
                numpy(&words);
                if (some.times > 1) high = middle;
                else low = middle + 1;
            }
            layers[layer].enough = low;
        }
    }

    void draw(Pcg64 &from, double *out, int count) const {
        for (int i = 0; i < count;) {
            const uint64_t *words = from.ahead();
            const int some = least(from.left(), count - i);
            int k = 0;
            while (k + GROUP <= some && all_usual(words + k, out + i + k)) k += GROUP;
            for (; k < some && usual(words[k], out[i + k]); k++) {}
            from.skip(k);
            i += k;
            if (k < some) {
                NumpyWords given = words_of(from);
                out[i++] = numpy(&given);
            }
        }
    }

  private:
    SDFEEL_INLINE bool usual(uint64_t word, double &out) const {
        const uint64_t size = word << 3 >> 12; // 52 bits
        const Layer &layer = layers[word % LAYERS];
        out = double(int64_t(size)) * layer.unit;
        return size < layer.enough;
    }
    static constexpr int GROUP = 8; // words of which one in ten is not usual
    SDFEEL_INLINE bool all_usual(const uint64_t *words, double *out) const {
        int unusual = 0;
        SDFEEL_UNROLL for (int i = 0; i < GROUP; i++) unusual |= !usual(words[i], out[i]);
        return !unusual;
    }
    struct Asked { // gives one word, and counts
        uint64_t word;
        int times = 0;
        uint64_t next() { return times++ ? uint64_t(1) << 63 : word; }
    };
};

} // namespace sdfeel
