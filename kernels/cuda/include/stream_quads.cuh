// stream_quads: how four neighbouring elements of a row are stored in a streamed matrix.
//
// Used by hybrid_stream.cu, whose header tells the kinds and the layout.
#pragma once

__device__ bool nonzero(Element x) { return (x & 0x7fff) != 0; }

// The four elements of quad q of a slab, for this lane.
struct Quad {
    int kind, code;
    unsigned word, second;     // what is stored; a single's value is the low half of word

    __device__ Quad(const Element* w, Count m, Count k, Count pitch, Count strip, Count column, int q) {
        const int lane = threadIdx.x % 32;
        const Count row = strip * 16 + lane / 4 + 8 * (q & 1), first = column + 16 * (q >> 1) + 4 * (lane & 3);
        Element x[4];
        unsigned low = 0, high = 0;            // the first two non-zeros, and their places
        int held = 0, low_place = 0, high_place = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[i] = row < m && first + i < k ? w[row * pitch + first + i] : Element(0);
            if (!nonzero(x[i])) { x[i] = 0; continue; }
            if (held == 0) { low = x[i]; low_place = i; }
            if (held == 1) { high = x[i]; high_place = i; }
            ++held;
        }
        second = 0;
        if (held > 2) {
            kind = 3; code = kLowPair;
            word = x[0] | unsigned(x[1]) << 16;
            second = x[2] | unsigned(x[3]) << 16;
        } else if (held == 2) {
            kind = 2; code = low_place | high_place << 2;
            word = low | high << 16;
        } else if (held == 1) {
            const bool last = low_place == 3;
            kind = last ? 2 : 1; code = last ? 0xC : low_place | 0xC;
            word = last ? low << 16 : low;
        } else {
            kind = 0; code = kLowPair; word = 0;
        }
    }
};
