// csr_multiply: what a thread of hybrid_csr.cu adds up, its elements of a row times lines (rows) of b.
//
// A thread takes a batch of elements: it reads their columns and values, then their lines of b, all of them before it
// waits for the first.  Loads behind the last element repeat an earlier one: with a branch around each of them the
// compiler waits for one after the other.  (Only the additions are left out: zero times an infinity of b is not zero.)
//
// With FOURS a batch is four neighbours that lie on a multiple of four, of which columns and values are one load each.
// With few columns of b those loads are most; with many, what is read for nothing at both ends of a row costs more.
#pragma once

// Elements of a row that a thread reads at once: as many as leave enough registers.
constexpr int kAheadWide = VECTOR == 8 ? 2 : 3;
constexpr int kAheadElse = VECTOR * sizeof(Element) == 16 && sizeof(Element) <= 4 ? 5 : 4;
constexpr int kAhead = FOURS ? 4 : WIDE > 1 ? kAheadWide : kAheadElse;

struct Batch {
    int column[kAhead];
    Sum value[kAhead];
    bool there[kAhead];
};

// Threads take every `step`-th batch of a row, or every `step`-th element.
#if FOURS
struct alignas(vector_bytes(4 * sizeof(Element))) Four { Element x[4]; };

__device__ int batches(const Share& share) {
    return share.first == share.end ? 0 : int((share.end + 3) / 4 - share.first / 4);
}
__device__ Batch read(const Left& a, const Share& share, int number) {
    const Count four = share.first / 4 + number;
    const int4 columns = reinterpret_cast<const int4*>(a.columns)[four];
    const Four values = reinterpret_cast<const Four*>(a.values)[four];
    const int column[] = {columns.x, columns.y, columns.z, columns.w};
    const int before = int(max(share.first - 4 * four, Count(0))), after = int(min(share.end - 4 * four, Count(4)));
    const int some = before == 0 ? column[0] : before == 1 ? column[1] : before == 2 ? column[2] : column[3];
    Batch batch;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
        batch.there[i] = i >= before && i < after;
        batch.column[i] = batch.there[i] ? column[i] : some;
        batch.value[i] = In::load(values.x[i]);
    }
    return batch;
}
constexpr int kApart = 1;  // batches from one of a thread to its next, for each thread of the row
#else
__device__ int batches(const Share& share) { return int(share.end - share.first); }
__device__ Batch read(const Left& a, const Share& share, int number) {
    const int count = batches(share);
    const int* const columns = a.columns + share.first;
    const Element* const values = a.values + share.first;
    Batch batch;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
        const int e = number + i * share.step;
        batch.there[i] = e < count;
        batch.column[i] = columns[batch.there[i] ? e : number];
        batch.value[i] = In::load(values[batch.there[i] ? e : number]);
    }
    return batch;
}
constexpr int kApart = kAhead;
#endif

// Adds the thread's elements times the columns of b from `b` on; with WIDE also those `apart` from these (or, if b has
// none, the same again).
__device__ void multiply(Sums& sums, const Left& a, const Share& share, const Element* b, int b_row, int apart) {
    const int count = batches(share);
    int number = share.turn;
    Batch batch;
    if (number < count) batch = read(a, share, number);
    wait_for_previous();
    while (number < count) {
        Right line[kAhead][WIDE];
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            for (int w = 0; w < WIDE; ++w)
                line[i][w] = *reinterpret_cast<const Right*>(b + Count(batch.column[i]) * b_row + w * apart);
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            if (batch.there[i])
                for (int w = 0; w < WIDE; ++w)
                    for (int v = 0; v < VECTOR; ++v)
                        sums.x[w * VECTOR + v] += batch.value[i] * In::load(line[i][w].x[v]);
        number += kApart * share.step;
        if (number < count) batch = read(a, share, number);
    }
}
