// hybrid_evict: rewrite strips of 128 rows of any matrix as 2:4 matrices with a few more columns.
//
// A group of four columns keeps two elements of each row.  The other elements are evicted, from as few of the four
// columns as possible: none, one, or two, which is always enough.  The evicted elements of a column become a new
// column, a slot.  Slots form groups of four again, such that no row has more than two elements in a group.  A block of
// 64 columns is dissolved, which means that all of its elements are evicted, if slots for all of its columns cost less
// than the block and its slots.
//
//   bits    [m, k]              elements, -0.0 made 0; rows `pitch` elements apart         (read)
//   evicted [strips, 64 blocks] a bit for each of the 128 rows, from the lowest on: set    (written)
//                               where the column's element is evicted
//   kept    [strips, blocks]    whether a block of 64 columns stays where it is            (written)
//   plain   [strips, blocks]    numbers of the blocks that stay                            (written)
//   slots   [strips, room]      columns, in groups of four; k where a slot is empty        (written)
//   counts  [strips, 2]         blocks that stay, slots                                    (written)
//   dense   [atoms, 128, 128]   the strips as 2:4 matrices, an atom is two stages          (written)
//   sources [2 atoms, 64]       columns of A of every stage; k or more: none               (written)
//
// A stage is 64 columns.  In a strip the blocks that stay come first, then the slots.
//
// A thread block of `evict` takes a block of a strip: its threads collect the rows of the columns in shared memory, and
// sixteen of them choose for a group each.  One of `pack`, a single warp, takes a strip; one of `fill` an atom, of the
// strip that `strip_of_atom` [atoms] names.
//
// Reference: kernels/reference_evict.py.  Launcher: kernels/hybrid_evict.py.
using u64 = unsigned long long;
using u32 = unsigned int;

constexpr int kRows = 128, kColumns = 64, kGroup = 4;
constexpr int kHeavy = 26;      // a column that evicts so many rows counts as two slots
constexpr int kAll = 0xFFFFFFFF;

// A set of rows of a strip.
struct alignas(16) Rows {
    u64 low, high;

    __device__ bool any() const { return low | high; }
    __device__ int count() const { return __popcll(low) + __popcll(high); }
};
__device__ inline Rows operator&(Rows a, Rows b) { return {a.low & b.low, a.high & b.high}; }
__device__ inline Rows operator|(Rows a, Rows b) { return {a.low | b.low, a.high | b.high}; }
__device__ inline Rows operator~(Rows a) { return {~a.low, ~a.high}; }

__device__ inline int weight(Rows column) { return column.any() ? 1 + (column.count() >= kHeavy) : 0; }

// The column other than `except` that has elements in the most of these rows.
__device__ inline int richest(const Rows (&column)[kGroup], Rows rows, int except) {
    int found = 0, most = -1;
#pragma unroll
    for (int i = 0; i < kGroup; i++) {
        const int here = (rows & column[i]).count();
        if (i != except && here > most) found = i, most = here;
    }
    return found;
}

// The rows whose element each column of a group must give up.  Rows of three or four elements give up one in column
// `first`, which has the most such rows.  Rows that have none there, and rows of four elements, give up one in
// `second`.
__device__ inline void choose(const Rows (&column)[kGroup], Rows (&out)[kGroup]) {
    const Rows both = column[0] & column[1], others = column[2] & column[3];
    const Rows four = both & others;
    const Rows three = (both & (column[2] | column[3])) | (others & (column[0] | column[1]));  // rows of three elements or four
    const int first = richest(column, three, -1);
    Rows rest = four;  // rows in which a second column must give up an element
#pragma unroll
    for (int i = 0; i < kGroup; i++)
        if (i == first) rest = rest | (three & ~column[i]);
    const int second = richest(column, rest, first);
#pragma unroll
    for (int i = 0; i < kGroup; i++) {
        out[i] = {0, 0};
        if (i == first) out[i] = three & column[i];
        if (i == second && second != first) out[i] = rest & column[i];
    }
}

// A bit for each of up to 64 rows of a column: set where its element is not zero.
__device__ inline u64 occupied(const unsigned short* column, int rows, long long pitch) {
    u64 found = 0;
    for (int row = 0; row < rows; row++) found |= u64(column[row * pitch] != 0) << row;
    return found;
}

// Slots that a group takes, or with sums over groups a block: if its columns stay, or if it is dissolved.
struct Slots { int stay = 0, dissolve = 0; };

// Choose what this thread's group evicts.
__device__ inline Slots choose_group(const u64 (&halves)[2][kColumns], Rows (&gone)[kColumns]) {
    const int first = threadIdx.x * kGroup;
    Rows columns[kGroup], out[kGroup];
    Slots slots;
#pragma unroll
    for (int i = 0; i < kGroup; i++) columns[i] = {halves[0][first + i], halves[1][first + i]};
    choose(columns, out);
#pragma unroll
    for (int i = 0; i < kGroup; i++) {
        gone[first + i] = out[i];
        slots.stay += weight(out[i]);
        slots.dissolve += weight(columns[i]);
    }
    return slots;
}

// Grid (blocks, strips).  A slot costs `dearer` times as much as a column that stays where it is.
extern "C" __global__ void __launch_bounds__(128)
evict(const unsigned short* bits, int m, int k, long long pitch, Rows* evicted, unsigned char* kept, float dearer) {
    __shared__ u64 halves[2][kColumns];
    __shared__ Rows gone[kColumns];
    const int block = blockIdx.x, blocks = gridDim.x, strip = blockIdx.y;
    const int local = threadIdx.x % kColumns, half = threadIdx.x / kColumns, column = block * kColumns + local;
    const int row0 = strip * kRows + half * 64;
    halves[half][local] = column < k ? occupied(bits + row0 * pitch + column, min(64, m - row0), pitch) : 0;
    __syncthreads();
    Slots slots;
    if (threadIdx.x < kColumns / kGroup) slots = choose_group(halves, gone);
    if (threadIdx.x < 32) {
        const int stay = __reduce_add_sync(kAll, slots.stay), dissolve = __reduce_add_sync(kAll, slots.dissolve);
        if (threadIdx.x == 0) kept[strip * blocks + block] = kColumns + dearer * stay <= dearer * dissolve;
    }
    __syncthreads();
    if (threadIdx.x < kColumns) {
        const bool stays = kept[strip * blocks + block];
        const Rows all = {halves[0][local], halves[1][local]};
        evicted[((long long)strip * blocks + block) * kColumns + local] = stays ? gone[local] : all;
    }
}

// The group of slots that a lane is filling.  So 32 groups are open at a time, and a column goes to the fullest one
// that it fits.  (Every group but the last ends with two columns or more, as two always fit: hence the `room`.)
struct Bin {
    Rows once, twice;  // rows with an element or more, and with two
    int columns[kGroup];
    int count;

    __device__ void clear(int none) {
        once = twice = {0, 0};
        count = 0;
        for (int i = 0; i < kGroup; i++) columns[i] = none;
    }
    __device__ bool fits(Rows rows) const { return count < kGroup && !(twice & rows).any(); }
    __device__ void add(Rows rows, int column) {
        twice = twice | (once & rows);
        once = once | rows;
        for (int i = 0; i < kGroup; i++)
            if (i == count) columns[i] = column;
        count++;
    }
    __device__ void give(int* to) const {
        for (int i = 0; i < kGroup; i++) to[i] = columns[i];
    }
};

// The lowest of the voting lanes with the greatest count; -1 if none votes.
__device__ inline int fullest(bool votes, int count) {
    u32 found = 0;
    for (int want = kGroup - 1; want >= 0 && !found; want--) found = __ballot_sync(kAll, votes && count == want);
    return __ffs(found) - 1;
}

extern "C" __global__ void __launch_bounds__(32)
pack(const Rows* evicted, const unsigned char* kept, int blocks, int k, int* plain, int* slots, int room, int* counts) {
    const int strip = blockIdx.x, lane = threadIdx.x;
    evicted += (long long)strip * blocks * kColumns;
    kept += strip * blocks, plain += strip * blocks, slots += (long long)strip * room;
    int stay = 0;
    for (int from = 0; from < blocks; from += 32) {
        const bool here = from + lane < blocks && kept[from + lane];
        const u32 votes = __ballot_sync(kAll, here);
        if (here) plain[stay + __popc(votes & ((1u << lane) - 1))] = from + lane;
        stay += __popc(votes);
    }
    Bin bin;
    bin.clear(k);
    int given = 0;
    for (int from = 0; from < blocks * kColumns; from += 32) {
        const Rows mine = evicted[from + lane];
        for (u32 left = __ballot_sync(kAll, mine.any()); left; left &= left - 1) {
            const int at = __ffs(left) - 1;
            const Rows rows = {__shfl_sync(kAll, mine.low, at), __shfl_sync(kAll, mine.high, at)};
            int taker = fullest(bin.fits(rows), bin.count);
            if (taker < 0) {  // it fits none: the fullest is written as it is, and begun anew
                taker = fullest(true, bin.count);
                if (lane == taker) bin.give(slots + given), bin.clear(k);
                given += kGroup;
            }
            if (lane == taker) bin.add(rows, from + at);
            const u32 full = __ballot_sync(kAll, bin.count == kGroup);
            if (bin.count == kGroup) bin.give(slots + given), bin.clear(k);
            given += full ? kGroup : 0;
        }
    }
    const u32 begun = __ballot_sync(kAll, bin.count > 0);
    if (bin.count > 0) bin.give(slots + given + kGroup * __popc(begun & ((1u << lane) - 1)));
    given += kGroup * __popc(begun);
    if (lane == 0) counts[2 * strip] = stay, counts[2 * strip + 1] = given;
}

// One atom of a strip; `first_atoms[i]` is the first of strip i.
extern "C" __global__ void __launch_bounds__(128)
fill(const unsigned short* bits, int m, int k, long long pitch, const Rows* evicted, const int* plain, const int* slots,
     const int* counts, int blocks, int room, const int* strip_of_atom, const int* first_atoms, unsigned short* dense,
     int* sources) {
    const int atom = blockIdx.x, strip = strip_of_atom[atom], local = threadIdx.x % kColumns;
    const int stage = 2 * (atom - first_atoms[strip]) + threadIdx.x / kColumns;
    const int stay = counts[2 * strip], slot = (stage - stay) * kColumns + local;
    const bool stays = stage < stay;
    int column = k;
    if (stays)
        column = plain[strip * blocks + stage] * kColumns + local;
    else if (slot < counts[2 * strip + 1])
        column = slots[(long long)strip * room + slot];
    sources[(long long)atom * 2 * kColumns + threadIdx.x] = column;
    Rows take = {0, 0};
    if (column < k) {
        take = evicted[(long long)strip * blocks * kColumns + column];
        if (stays) take = ~take;
    }
    unsigned short* to = dense + (long long)atom * kRows * 2 * kColumns + threadIdx.x;
    const unsigned short* from = bits + (long long)strip * kRows * pitch + min(column, k - 1);
    const int rows = min(kRows, m - strip * kRows);
    for (int row = 0; row < kRows; row++) {
        const u64 word = row < 64 ? take.low : take.high;
        to[row * 2 * kColumns] = row < rows && (word >> row % 64 & 1) ? from[row * pitch] : 0;
    }
}
