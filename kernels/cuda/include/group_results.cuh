// group_results: the tile of the product of one group, from its sums in shared memory to the result.
//
// Compiled with the macros of sparse_tile and tile_store, OUT_COLUMN and OUT_ALIGNED 1, and
//   GATED    1: A has 2 m rows, first those of a gate, then those that it gates.  The first half of a tile's rows are
//            of the gate, the second half the rows that they gate, so a block has both factors of every element.
#pragma once
#include "group_scheduler.cuh"
#include "tile_store.cuh"

constexpr int kHalves = GATED ? 2 : 1;
constexpr int kTileRows = TILE_M / kHalves;  // of the result
static_assert(OUT_COLUMN && OUT_ALIGNED && kTileRows % 16 == 0);

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
