// group_tile: a tile of the product of one group: what it reads, and how its sums are stored.
//
// Compiled with the macros of sparse_tile and tile_store, B_COLUMN, OUT_COLUMN and OUT_ALIGNED 1, and
//   GATED    1: A has 2 m rows, first those of a gate, then those that it gates.  The first half of a tile's rows are
//            of the gate, the second half the rows that they gate, so a block has both factors of every element.
#pragma once
#include "copy_ring.cuh"
#include "group_scheduler.cuh"
#include "tile_store.cuh"

constexpr int kHalves = GATED ? 2 : 1;
constexpr int kTileRows = TILE_M / kHalves;  // of the result
static_assert(B_COLUMN && OUT_COLUMN && OUT_ALIGNED && kTileRows % 16 == 0);

// `s` has the m rows of the result; the columns of the group end at s.n.
struct GroupTile {
    const char *values, *meta, *b;  // of the group, from the tile's first row and column on
    int first_row, first_column;    // of the result

    GroupTile(const char* values, const char* meta, const char* b, const Shape& s, const Work& work)
        : first_row(work.m * kTileRows), first_column(work.first) {
        this->values = values + work.group * s.a_batch + first_row * s.a_pitch;
        this->meta = meta + work.group * s.meta_batch;
        this->b = b + first_column * s.b_column * kItem;
    }

    void load(unsigned stage, const Shape& s, int k0) const {
        const int of_a = k0 / 2 * kItem, of_b = k0 * kItem;  // bytes
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
            copy_lines<kTileRows, TILE_M, kAChunks>(stage, half * kTileRows, values + half * s.m * s.a_pitch, s.a_pitch,
                                                    of_a, s.values_per_row * kItem, s.m - first_row);
        load_meta(stage + kABytes, s, k0);
        copy_lines<TILE_N, TILE_N, kBChunks>(stage + kABytes + kMetaBytes, 0, b, s.b_column * kItem, of_b,
                                             s.k * kItem, s.n - first_column);
    }

  private:
    // Every 16 rows of an atom have 256 consecutive bytes; with a gate m is a multiple of 16, so that this holds for
    // the second half of the rows as well.
    void load_meta(unsigned to, const Shape& s, int k0) const {
        const int atoms_k = (s.k + 127) / 128;
        deal<kAtoms * TILE_M>([&](int i) {
            const int row = first_row + i % kTileRows + i % TILE_M / kTileRows * s.m, atom = k0 / 128 + i / TILE_M;
            const bool inside = row / 64 < s.meta_atoms_m && atom < atoms_k;
            const long long at = ((long long)atom * s.meta_atoms_m + row / 64) * 1024 + row % 64 * 16;
            copy_async(to + 16 * i, meta + (inside ? at : 0), 16);
        });
    }
};

// Stores a tile from its sums in shared memory.
class GroupResults {
    using Value = typename Out::real;
    static constexpr int kBits = GATED ? EPILOGUE & ~kActivation : EPILOGUE;  // a gate is activated later
    static constexpr int kVector = smaller(8, 16 / (int)sizeof(typename Out::type));
    static_assert(sizeof(Value) == 4 && !(EPILOGUE & (kC | kAux)));

  public:
    GroupResults(typename Out::type* out, const Shape& s, const EpilogueParams& p) : out_(out), s_(s), p_(p), numbers_(p) {}

    // Writes whole vectors along m, zeros behind row m included; no column at or behind work.end, the end of the group.
    void store(const Sum* partials, const Work& work) const {
        struct alignas(kVector * sizeof(typename Out::type)) Pack { typename Out::type x[kVector]; };
        each_vector<kTileRows, kVector>([&](int row, int column) {
            const int i = work.m * kTileRows + row, j = work.first + column;
            if (i >= s_.m || j >= work.end) return;
            const auto of_column = column_terms<EPILOGUE, Value>(p_, j);
            Pack pack = {};
#pragma unroll
            for (int v = 0; v < kVector; ++v)
                if (i + v < s_.m) pack.x[v] = value(partials, row + v, column, i + v, work.group, of_column);
            *reinterpret_cast<Pack*>(out_ + i + j * s_.out_column) = pack;
        });
    }

  private:
    using Terms = EpilogueTerms<Value>;

    // `half` counts the halves of the rows of all groups.
    auto linear(Sum sum, int half, int i, const Terms& of_column) const {
        const auto of_row = row_terms<EPILOGUE, Value>(p_, (long long)half * s_.m + i);
        return epilogue_value<Kind::OUTPUT, kBits, ACTIVATION>(sum, p_, 0, 0, 0, of_row, of_column, numbers_);
    }
    typename Out::type value(const Sum* partials, int row, int column, int i, int group, const Terms& of_column) const {
        const auto first = linear(block_sum(partials, row, column), group * kHalves, i, of_column);
        if constexpr (!GATED) return Out::store(first);
        else {
            const Value gated = linear(block_sum(partials, row + kTileRows, column), group * 2 + 1, i, of_column);
            constexpr bool rough = sizeof(typename Out::type) <= 2;
            return Out::store(activate<ACTIVATION, rough>(Value(first), numbers_.lower, numbers_.upper) * gated);
        }
    }

    typename Out::type* out_;
    const Shape& s_;
    const EpilogueParams& p_;
    EpilogueNumbers<Value> numbers_;
};
