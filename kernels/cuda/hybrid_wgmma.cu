// hybrid_wgmma: out (m, n) = A (m, k; any zeros) @ b (k, n) on the sparse tensor cores of Hopper.
//
// A comes as strips of 128 rows, each rewritten by hybrid_evict.cu as a 2:4 matrix of its own: 64-column
// blocks of A that stay where they are, and slots, columns that hold what did not fit.
//
//   values  [atoms, 128, 64]   stored elements; an atom is 128 columns of a strip            (read)
//   packed  [atoms, 2, 1024]   metadata in 64x128 atoms (sparse24/_spec.py)                  (read)
//   sources [2 atoms, 64]      rows of b of every half atom, a stage; k or more: zeros       (read)
//   strips  [ceil(m / 128)]    first stage; stages; how many of them, the first, are plain,
//                              64 rows of b from sources[stage][0] on; first row of out      (read)
//   b       [k, n]             n contiguous, rows on 16-byte boundaries                      (read)
//   out     [m, n]             any strides; fastest with m or n contiguous                   (written)
//
// The kernel is sparse_wgmma.cu with another list of stages.  Where a stage's rows of b are not
// neighbours, the four producer warps fetch them one by one, 128 bytes of four rows an instruction,
// into the very layout in which the TMA would have put them.  Gathered stages come last in a strip.
//
// Macros: ELEMENT OUTPUT BLOCK_N STAGES K_PARTS OUT_ROW_MAJOR OUT_BULK STAGING; kernels/hybrid_wgmma.py
// chooses.
//
// Reference: the dense product.  Launcher: kernels/hybrid_wgmma.py.  How it works:
// docs/explanation/hybrid.rst.
#define B_ELEMENT ELEMENT
#define B_ROW_MAJOR 1
#define EPILOGUE 0
#define ACTIVATION 0
#define CLUSTER 1
#define SPLIT 0
#include "cluster_sums.cuh"
#include "gather_pipeline.cuh"
#include "hopper_metadata.cuh"
#include "hopper_store.cuh"
#include "programmatic.cuh"
#include "tile_scheduler.cuh"

struct Strip {
    int first_stage, stages, plain;  // plain: stages whose rows of b are neighbours
    int row;                         // of the result
};
struct Operands {
    const unsigned char* packed;
    const int* sources;
    const Strip* strips;
    const unsigned short* b;
    int b_pitch;  // bytes
    int m, n, k;
};

constexpr int BLOCK_K = 64, kConsumers = 2;
constexpr int kRowBlocks = BLOCK_M / (64 * kConsumers);    // of 64 rows, of a consumer
constexpr int kProducer = kConsumers * 128;              // first thread of the producers
constexpr int kThreads = kProducer + 128;
constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;

constexpr int kParts = kAtomK / BLOCK_K;                 // stages of an atom
constexpr int kSteps = BLOCK_K / 32;                     // instructions of a stage
constexpr u32 kRowBlockBytes = 64 * BLOCK_K;
constexpr u32 kABytes = BLOCK_M * BLOCK_K;
constexpr u32 kBBytes = BLOCK_N * BLOCK_K * 2;
constexpr u32 kStageBytes = kABytes + kBBytes;
constexpr u32 kMetadataBytes = kConsumers * kRowBlocks * kAtomBytes;
constexpr int kSlots = (STAGES + kParts - 1) / kParts;   // metadata buffers, one for kParts stages
constexpr u32 kMetadataAt = STAGES * kStageBytes;
constexpr u32 kStagingAt = kMetadataAt + kSlots * kMetadataBytes;
constexpr u32 kBarriersAt = kStagingAt + kConsumers * STAGING * kStagingBytes;

constexpr u64 kADescriptor = descriptor(kSwizzle64, 512);
constexpr u64 kBDescriptor = descriptor(kSwizzle128, 1024, BLOCK_K * 128);

using Ring = GatherPipeline<STAGES, kConsumers * 4>;
using Others = ClusterSums<kRowBlocks, kConsumers>;
static_assert(Others::bytes <= kMetadataAt);

// A block's share of a strip: all of it, or whole atoms of it.
struct Share {
    int first, end, plain;  // stages of the whole matrix; up to `plain` the rows of b are neighbours
    int row;

    __device__ Share(const Strip& strip, u32 part) {
        const int atoms = strip.stages / kParts;
        first = strip.first_stage + int(atoms * part / K_PARTS) * kParts;
        end = strip.first_stage + int(atoms * (part + 1) / K_PARTS) * kParts;
        plain = min(end, max(first, strip.first_stage + strip.plain));
        row = strip.row;
    }
};

// Where a stage lies in the ring, and the metadata of its atom.
struct Place {
    Ring::Position at;
    int slot = 0;

    __device__ void advance(int part) {  // past this part of an atom
        at.advance();
        if (part == kParts - 1) slot = slot + 1 == kSlots ? 0 : slot + 1;
    }
    __device__ void skip(int stages) {  // the first of which begins an atom
        const int after = at.stage + stages;
        at.phase ^= after / STAGES & 1;
        at.stage = after % STAGES;
        slot = (slot + stages / kParts) % kSlots;
    }
};

// The producer warpgroup's place in the ring; a lane of its first warp is the leader.
//
// All threads step through the stages alike, and what the leader does alone changes nothing that
// outlives it, so that the compiler knows its operands to be the same in all lanes.
class Producer {
    static constexpr int kOfWarp = BLOCK_K / 4;  // rows of b that a warp gathers for a stage
    static constexpr int kAhead = 3;             // stages for which a lane holds row numbers

  public:
    __device__ Producer(const TensorMap& values, const TensorMap& b_map, const Operands& of, const Ring& ring,
                        u32 shared)
        : values_(values), b_map_(b_map), of_(of), ring_(ring), shared_(shared),
          warp_(__shfl_sync(~0u, threadIdx.x / 32 % 4, 0)), lane_(threadIdx.x % 32) {}

    __device__ void fetch(const Share& share, int n0) {
        int4 rows[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; i++) rows[i] = rows_of(share, share.plain + i);
        lead([&] { fetch_plain(share, n0); });
        // A barrier's parity tells two walks through the ring apart, not three: nobody may be further ahead.
        group_sync(1 + kConsumers, 128);
        place_.skip(share.plain - share.first);
        gather(share, n0, rows);
    }

  private:
    // The test stands before the work, and is not passed on as a value: see elected().
    template <class Act> __device__ void lead(Act act) const {
        if (warp_ == 0 && elected()) act();
        __syncwarp();
    }

    // Stages whose rows of b are neighbours; work of the leader, which looks an atom ahead.
    __device__ void fetch_plain(const Share& share, int n0) const {
        Place place = place_;
        int rows[kParts];
#pragma unroll
        for (int part = 0; part < kParts; part++) rows[part] = first_row(share, share.first + part);
        for (int stage = share.first; stage < share.plain; stage += kParts) {
            int next[kParts];
#pragma unroll
            for (int part = 0; part < kParts; part++) next[part] = first_row(share, stage + kParts + part);
#pragma unroll
            for (int part = 0; part < kParts; part++) {
                if (stage + part == share.plain) break;
                const u32 barrier = ring_.acquire(place.at), to = shared_ + place.at.stage * kStageBytes;
                Ring::announce(barrier, kStageBytes + (part ? 0 : kMetadataBytes), true);
                fetch_a(stage / kParts, part, place, barrier);
#pragma unroll
                for (int span = 0; span < BLOCK_N / 64; span++)
                    load_box(to + span * BLOCK_K * 128, b_map_, n0 + span * 64, rows[part], 0, barrier);
                place.advance(part);
            }
#pragma unroll
            for (int part = 0; part < kParts; part++) rows[part] = next[part];
        }
    }
    __device__ int first_row(const Share& share, int stage) const {
        return stage < share.plain ? of_.sources[(long long)stage * BLOCK_K] : 0;
    }
    // The others: 16 rows of b a warp, of which it copies 128 bytes of four at once.  A row number takes longer from
    // memory than a stage, and to move one on to another register would be to wait for it.
    __device__ void gather(const Share& share, int n0, int4 (&rows)[kAhead]) {
        for (int stage = share.plain; stage < share.end; stage += kAhead) {
#pragma unroll
            for (int i = 0; i < kAhead; i++) {
                if (stage + i >= share.end) return;
                gather_stage(stage + i, n0, rows[i]);
                rows[i] = rows_of(share, stage + i + kAhead);
            }
        }
    }
    __device__ void gather_stage(int stage, int n0, const int4& rows) {
        const int part = stage % kParts;
        const u32 barrier = ring_.acquire(place_.at);
        lead([&] {
            Ring::announce(barrier, kABytes + (part ? 0 : kMetadataBytes), false);
            fetch_a(stage / kParts, part, place_, barrier);
        });
        gather_rows(rows, n0 + lane_ % 8 * 8);
        Ring::follow(barrier);
        place_.advance(part);
    }
    // Four neighbours of this warp's sixteen, for each eight lanes.
    __device__ int4 rows_of(const Share& share, int stage) const {
        const int* from = of_.sources + (long long)stage * BLOCK_K + first_of_lane();
        return stage < share.end ? *reinterpret_cast<const int4*>(from) : make_int4(0, 0, 0, 0);
    }
    __device__ int first_of_lane() const { return warp_ * kOfWarp + lane_ / 8 * 4; }

    // `column`: the lane's first.  Beyond b, stages keep what they held: it makes columns that are never
    // stored.
    __device__ void gather_rows(const int4& rows, int column) const {
        const int row[4] = {rows.x, rows.y, rows.z, rows.w};
        const u32 stage = shared_ + place_.at.stage * kStageBytes;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int line = first_of_lane() + i;
            const u32 to = stage + line * 128 + ((lane_ ^ line) % 8 << 4);
            const bool none = row[i] >= of_.k;
            const auto* from = reinterpret_cast<const unsigned char*>(of_.b + column);
            from += (u64)(none ? 0u : (u32)row[i]) * (u32)of_.b_pitch;
#pragma unroll
            for (int span = 0; span < BLOCK_N / 64; span++)
                if (column + span * 64 < of_.n) copy16(to + span * BLOCK_K * 128, from + span * 128, none);
        }
    }
    __device__ void fetch_a(int atom, int part, const Place& place, u32 barrier) const {
        if (part == 0) {
            const u32 metadata = shared_ + kMetadataAt + place.slot * kMetadataBytes;
            load_bytes(metadata, of_.packed + (long long)atom * kMetadataBytes, kMetadataBytes, barrier);
        }
        const u32 to = shared_ + place.at.stage * kStageBytes + kBBytes;
        load_box(to, values_, part * (BLOCK_K / 2), 0, atom, barrier);
    }

    const TensorMap &values_, &b_map_;
    const Operands& of_;
    const Ring& ring_;
    u32 shared_;
    int warp_, lane_;
    Place place_;
};

// One consumer warpgroup: its accumulators and its place in the ring.
class Consumer {
  public:
    Sum d[kRowBlocks][BLOCK_N / 2];

    __device__ Consumer(const Ring& ring, u32 shared, int group) : ring_(ring), shared_(shared), group_(group) {}

    // Begin d = the products of the stages.  The ring goes on where the last work left it.
    __device__ void multiply(const Share& share) {
        const int atoms = (share.end - share.first) / kParts;
        plain_ = share.plain - share.first;
        Metadata<kRowBlocks> even, odd;
        even.clear();
        odd.clear();
        multiply_atom<true>(even, odd);
        drain();  // the compiler serialises all groups if it sees metadata loaded while this one runs
        for (int atom = 1; atom < atoms; atom++) {
            if (IN_FLIGHT && atom % 2)
                multiply_atom<false>(odd, even);
            else
                multiply_atom<false>(even, odd);
        }
    }
    // Wait for what multiply began.
    __device__ void finish() {
        drain();
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++) pin(d[r]);
    }

  private:
    // One group of instructions a stage, of which one still runs when the next atom begins: the metadata of
    // `last` must stay.  A `fresh` atom overwrites the sums.
    template <bool fresh> __device__ void multiply_atom(Metadata<kRowBlocks>& metadata, const Metadata<kRowBlocks>& last) {
#pragma unroll
        for (int part = 0; part < kParts; part++) {
            ring_.wait(at_);
            if (plain_-- <= 0) async_proxy_fence();  // the tensor cores read what threads have copied
            if (part == 0) fetch(metadata);
            wgmma_fence();
            multiply_stage(metadata, part, part || !fresh);
            group_commit();
            group_wait<1>();
            if (IN_FLIGHT && part == 0) last.hold(shared_);
            if (previous_ >= 0) ring_.release(previous_);
            previous_ = at_.stage;
            at_.advance();
        }
        if (!IN_FLIGHT) drain();
    }
    __device__ void fetch(Metadata<kRowBlocks>& metadata) {
        metadata.load(shared_ + kMetadataAt + slot_ * kMetadataBytes + group_ * kRowBlocks * kAtomBytes + metadata_offset());
        slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
    }
    __device__ void multiply_stage(const Metadata<kRowBlocks>& metadata, int part, u32 keep) {
        const u32 stage = shared_ + at_.stage * kStageBytes;
        const u64 a = kADescriptor | descriptor_start(stage + kBBytes + group_ * kRowBlocks * kRowBlockBytes);
        const u64 b = kBDescriptor | descriptor_start(stage);
#pragma unroll
        for (int step = 0; step < kSteps; step++)
#pragma unroll
            for (int r = 0; r < kRowBlocks; r++) {
                const u64 a_step = a + (r * kRowBlockBytes + step * 32) / 16, b_step = b + step * 4096 / 16;
                if (part)
                    wgmma_sp<1>(d[r], a_step, b_step, metadata.words[r][step], 1);
                else
                    wgmma_sp<0>(d[r], a_step, b_step, metadata.words[r][step], step ? 1 : keep);
            }
    }
    // Wait for all groups and give back the last stage.
    __device__ void drain() {
        group_wait<0>();
        if (previous_ >= 0) ring_.release(previous_);
        previous_ = -1;
    }

    const Ring& ring_;
    u32 shared_;
    int group_, plain_ = 0;
    Ring::Position at_;
    int slot_ = 0, previous_ = -1;
};

// Call act(share, first column) for every tile of this block.
template <class Act> __device__ void for_each_tile(const Operands& of, TileScheduler tiles, u32 part, Act act) {
    Work work;
    bool more = tiles.advance(work);
    Strip strip = of.strips[more ? work.m : 0];
    while (more) {
        const Share share(strip, part);
        const int n0 = work.n * BLOCK_N;
        more = tiles.advance(work);
        strip = of.strips[more ? work.m : 0];  // in time for the next tile
        act(share, n0);
    }
}

__device__ inline void consume(const TensorMap& out_map, const OutView& out, const EpilogueParams& params,
                               const Operands& of, TileScheduler tiles, const Ring& ring, const Others& parts,
                               u32 part, u32 shared) {
    const int group = threadIdx.x / 128;
    ResultStore result(out_map, out, params, of.m, of.n, shared + kStagingAt + group * STAGING * kStagingBytes);
    Consumer consumer(ring, shared, group);
    for_each_tile(of, tiles, part, [&](const Share& share, int n0) {
        consumer.multiply(share);
        consumer.finish();
        if (K_PARTS > 1) {
            parts.meet();
#pragma unroll
            for (int r = 0; r < kRowBlocks; r++) parts.give(consumer.d[r], r);
            parts.await();
        }
#pragma unroll
        for (int r = 0; r < kRowBlocks; r++) {
            const int row = share.row + (group * kRowBlocks + r) * 64;
            result.store(consumer.d[r], row, n0, 0, [&](auto& sums, int first) {
                return K_PARTS > 1 ? parts.add(sums, r, first) : true;
            });
        }
    });
    result.finish();
}

__device__ inline void produce(const TensorMap& values, const TensorMap& b, const Operands& of, TileScheduler tiles,
                               const Ring& ring, u32 part, u32 shared) {
    Producer producer(values, b, of, ring, shared);
    for_each_tile(of, tiles, part, [&](const Share& share, int n0) { producer.fetch(share, n0); });
}

extern "C" __global__ void
#if K_PARTS > 1
__cluster_dims__(K_PARTS, 1, 1)
#endif
__launch_bounds__(kThreads, 1)
hybrid_wgmma(const __grid_constant__ TensorMap values, const __grid_constant__ TensorMap b,
             const __grid_constant__ TensorMap out_map, const __grid_constant__ OutView out,
             const __grid_constant__ Operands of, const __grid_constant__ Tiling tiling,
             const __grid_constant__ EpilogueParams params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory), part = K_PARTS > 1 ? cluster_rank() : 0;
    const Ring ring(shared + kBarriersAt);
    const TileScheduler tiles(tiling, 0, 0, part);
    const Others parts(shared, shared + kBarriersAt + Ring::bytes, part);

    if (threadIdx.x == kProducer) {
        prefetch_map(values);
        prefetch_map(b);
        if (OUT_BULK) prefetch_map(out_map);
        ring.init();
        if (K_PARTS > 1) parts.init();
    }
    let_next_start();
    if constexpr (K_PARTS > 1) cluster_sync(); else __syncthreads();
    wait_for_previous();

    if (threadIdx.x >= kProducer) {
        give_registers<kProducerRegisters>();
        produce(values, b, of, tiles, ring, part, shared);
        if (K_PARTS > 1) parts.meet();
    } else {
        take_registers<kConsumerRegisters>();
        consume(out_map, out, params, of, tiles, ring, parts, part, shared);
    }
}
