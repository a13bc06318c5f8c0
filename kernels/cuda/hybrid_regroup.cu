// hybrid_regroup: rewrite strips of ROWS rows of any matrix as 2:4 matrices, with their columns grouped anew.
//
// A group of four columns keeps two elements of each row.  Which columns form a group may differ from strip to strip,
// because the product fetches each row of b by its number.  So full columns are combined with sparse ones, and with
// columns whose elements lie in other rows.  At 80 % zeros hardly any element is left over, where groups of neighbours
// would leave a third more columns.
//
// The columns of a strip are dealt to pools, 32 neighbours at a time.  In a pool, groups are formed greedily.  The
// fullest column begins a group; the column that shares the fewest rows with it joins, and then two more that overflow
// in few rows.  The elements of a column that overflow stay in the pool as a column of its own, mostly a sparse one,
// which fits well as the last member of another group.  A column of which more than half would overflow may not join;
// if there is no other, the group remains short.
//
// The product multiplies 64 rows at a time and skips those without an element in a stage of 64 columns.  So columns
// that are empty in the same 64 rows should share a group, and such groups a stage.
//
//   bits    [m, k]                      elements, -0.0 made 0; rows `pitch` elements apart       (read)
//   slots   [strips, pools, room]       columns, in groups of four; k where a slot is empty      (written)
//   taken   [strips, pools, room]       rows that each slot takes of its column, a bit each      (written)
//   blocks  [strips, pools, room / 4]   a bit for each 64 rows in which a group has elements     (written)
//   order   [strips, pools * room / 4]  groups, those with equal `blocks` together, empty last   (read)
//   stages  [2 atoms]                   which sixteen groups of its strip's order make a stage   (read)
//   dense   [atoms, ROWS, 128]          the strips as 2:4 matrices, an atom is two stages        (written)
//   sources [2 atoms, 64]               columns of A of every stage; k: none                     (written)
//
// A thread block of `regroup` takes a pool of a strip, of `fill` an atom, of the strip that
// `strip_of_atom` [atoms] names.  `blocks` must be cleared before.
//
// Macros: ROWS, a multiple of 64.
// Reference: kernels/reference_regroup.py.  Launcher: kernels/hybrid_regroup.py.
using u32 = unsigned int;

constexpr int kGroup = 4, kAtom = 128, kStage = kAtom / 2, kNeighbours = 32;
constexpr int kGroupsOfStage = kStage / kGroup;
constexpr int kPool = 2048, kThreads = 512, kWarps = kThreads / 32;
constexpr int kMine = kPool / kThreads;      // columns of a thread
constexpr int kRoom = 2 * kPool;             // slots of a pool: every group but the last holds two whole columns
constexpr int kWords = ROWS / 32;
constexpr int kBlocks = ROWS / 64;           // of rows
// A column is worth as much as it has elements, less these costs as the first, second, third and fourth member of a
// group.  They were found by search, see docs/benchmarks/log_hybrid.rst.
constexpr int kOverflow[] = {0, 0, 270, 420};  // for each row that overflows
constexpr int kFills[] = {0, 32, 3, 0};        // for each row in which the group has an element already
constexpr int kFresh[] = {0, 2000, 160, 125};  // for each 64 rows in which only the column has elements
constexpr int kMissing[] = {0, 65, 165, 45};   // for each 64 rows in which only the group has elements
constexpr u32 kAll = ~0u;

// A set of rows of a strip.
struct alignas(16) Rows {
    u32 words[kWords];

    __device__ int count() const {
        int found = 0;
#pragma unroll
        for (int i = 0; i < kWords; i++) found += __popc(words[i]);
        return found;
    }
    // A bit for each 64 rows that hold elements.
    __device__ u32 blocks() const {
        u32 found = 0;
#pragma unroll
        for (int i = 0; i < kBlocks; i++) found |= u32((words[2 * i] | words[2 * i + 1]) != 0) << i;
        return found;
    }
    __device__ int common(const Rows& other) const {
        int found = 0;
#pragma unroll
        for (int i = 0; i < kWords; i++) found += __popc(words[i] & other.words[i]);
        return found;
    }
};

// Rows in which the group that is being formed has at least one element, and two.
struct Load {
    Rows once, twice;

    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < kWords; i++) once.words[i] = twice.words[i] = 0;
    }
    __device__ void add(const Rows& rows) {
#pragma unroll
        for (int i = 0; i < kWords; i++) {
            twice.words[i] |= once.words[i] & rows.words[i];
            once.words[i] |= rows.words[i];
        }
    }
};

// The columns of a pool that a thread looks after: every kThreads-th.
struct Columns {
    Rows rows[kMine];
    int count[kMine];
    u32 blocks[kMine];
    bool joined[kMine];                      // whether in the group that is being formed

    // Number of a pool's `index`-th column in the matrix.
    __device__ static int place(int index, int pool, int pools) {
        return (index / kNeighbours * pools + pool) * kNeighbours + index % kNeighbours;
    }
    __device__ void load(const unsigned short* bits, int m, int k, long long pitch, int pool, int pools) {
#pragma unroll
        for (int i = 0; i < kMine; i++) {
            const int column = place(threadIdx.x + i * kThreads, pool, pools);
            const unsigned short* from = bits + column;
#pragma unroll
            for (int word = 0; word < kWords; word++) {
                u32 held = 0;
                const int height = column < k ? min(32, m - word * 32) : 0;
                for (int row = 0; row < height; row++) held |= u32(from[row * pitch] != 0) << row;
                rows[i].words[word] = held;
                from += 32 * pitch;
            }
            count[i] = rows[i].count(), blocks[i] = rows[i].blocks();
        }
    }
    // The best column to join as the `member`-th: how much it is worth, and below that its place; 0: none.
    template <int member> __device__ u32 best(const Load& load) const {
        constexpr int over_by = kOverflow[member], fills_by = kFills[member], fresh_by = kFresh[member],
                      missing_by = kMissing[member], bias = (over_by + fills_by) * ROWS + (fresh_by + missing_by) * kBlocks;
        const u32 of_group = load.once.blocks();
        u32 found = 0;
#pragma unroll
        for (int i = 0; i < kMine; i++) {
            const int over = over_by ? rows[i].common(load.twice) : 0, fills = fills_by ? rows[i].common(load.once) : 0;
            const int fresh = __popc(blocks[i] & ~of_group), missing = __popc(of_group & ~blocks[i]);
            const u32 worth = bias + count[i] - over_by * over - fills_by * fills - fresh_by * fresh - missing_by * missing;
            const bool may = count[i] > 0 && !joined[i] && 2 * over <= count[i];
            const u32 key = worth * kPool + kPool - 1 - (threadIdx.x + i * kThreads);  // of equal ones the first
            if (may) found = max(found, key);
        }
        return found;
    }
    __device__ u32 best(const Load& load, int member) const {
        switch (member) {
            case 0: return best<0>(load);
            case 1: return best<1>(load);
            case 2: return best<2>(load);
            default: return best<3>(load);
        }
    }
    // Take the rows of a column that fit the group out of it; the others stay in the pool.
    __device__ Rows take(int which, const Load& load) {
        Rows given = {};
#pragma unroll
        for (int i = 0; i < kMine; i++)
            if (i == which) {
#pragma unroll
                for (int word = 0; word < kWords; word++) {
                    given.words[word] = rows[i].words[word] & ~load.twice.words[word];
                    rows[i].words[word] &= load.twice.words[word];
                }
                count[i] = rows[i].count(), blocks[i] = rows[i].blocks();
                joined[i] = true;
            }
        return given;
    }
    __device__ void begin_group() {
#pragma unroll
        for (int i = 0; i < kMine; i++) joined[i] = false;
    }
};

__device__ inline u32 greatest_of_block(u32 key) {
    __shared__ u32 of_warp[kWarps];
    key = __reduce_max_sync(kAll, key);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = key;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarps; i++) key = max(key, of_warp[i]);
    return key;
}

// Grid (pools, strips).
extern "C" __global__ void __launch_bounds__(kThreads)
regroup(const unsigned short* bits, int m, int k, long long pitch, int* slots, Rows* taken, unsigned char* blocks) {
    __shared__ Rows given;
    const int pool = blockIdx.x, pools = gridDim.x, strip = blockIdx.y;
    const long long at = (long long)strip * pools + pool;
    slots += at * kRoom, taken += at * kRoom, blocks += at * (kRoom / kGroup);
    Columns columns;
    columns.load(bits + (long long)strip * ROWS * pitch, m - strip * ROWS, k, pitch, pool, pools);
    bool more = true;
    for (int formed = 0; more; formed++) {
        Load load;
        load.clear();
        columns.begin_group();
        for (int member = 0; member < kGroup; member++) {
            const u32 key = greatest_of_block(columns.best(load, member));
            if (key == 0) {  // no column fits: the group stays short, or all are done
                more = member > 0;
                if (more && threadIdx.x >= member && threadIdx.x < kGroup) slots[formed * kGroup + threadIdx.x] = k;
                __syncthreads();
                break;
            }
            const int index = kPool - 1 - key % kPool;
            if (threadIdx.x == index % kThreads) {
                given = taken[formed * kGroup + member] = columns.take(index / kThreads, load);
                slots[formed * kGroup + member] = Columns::place(index, pool, pools);
            }
            __syncthreads();
            load.add(given);
        }
        if (more && threadIdx.x == 0) blocks[formed] = load.once.blocks();
    }
}

// `width`: groups that the pools of a strip have room for.
extern "C" __global__ void __launch_bounds__(kAtom)
fill(const unsigned short* bits, int m, int k, long long pitch, const int* slots, const Rows* taken,
     const unsigned char* blocks, const int* order, int width, const int* stages, const int* strip_of_atom,
     unsigned short* dense, int* sources) {
    const int atom = blockIdx.x, strip = strip_of_atom[atom];
    const int stage = stages[2 * atom + threadIdx.x / kStage], place = stage * kGroupsOfStage + threadIdx.x % kStage / kGroup;
    const long long first = (long long)strip * width;
    long long slot = -1;
    if (place < width) {
        const long long group = first + order[first + place];
        if (blocks[group]) slot = group * kGroup + threadIdx.x % kGroup;
    }
    const int column = slot < 0 ? k : slots[slot];
    sources[(long long)atom * kAtom + threadIdx.x] = column;
    Rows rows = {};
    if (column < k) rows = taken[slot];
    const unsigned short* from = bits + (long long)strip * ROWS * pitch + column;
    unsigned short* to = dense + (long long)atom * ROWS * kAtom + threadIdx.x;
#pragma unroll
    for (int word = 0; word < kWords; word++)
        for (int i = 0; i < 32; i++) {
            const int row = word * 32 + i;
            to[row * kAtom] = rows.words[word] >> i & 1 ? from[row * pitch] : 0;
        }
}
