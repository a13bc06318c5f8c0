// group_store: from the accumulators of a warpgroup through the epilogue to the columns that belong to one group.
//
// Columns of the result are contiguous.  As in hopper_store.cuh, 64 rows by kChunk columns at a time become lines in
// shared memory.  Threads then write the lines, 16 bytes at a time, up to the end of the group, where the TMA could not
// stop.  One buffer is enough, because only the threads themselves read it; the warpgroup's named barrier separates
// writing from reading it.
//
// Compiled as hopper_store.cuh is, with OUT_ROW_MAJOR 0, and with -DGATED.
#pragma once
#include "group_gate.cuh"
#include "lanes.cuh"

struct GroupOut {
    void* data;
    long long pitch;     // from one column to the next, in elements
    int m;
};

// 64 rows of the result and a tile's columns.
struct Part {
    int row, first;  // the corner
    int end;         // of the group's columns
    int group;
};

class GroupStore {
    static_assert(!OUT_ROW_MAJOR && sizeof(Out::real) == 4 && !(EPILOGUE & (kC | kAux)));

  public:
    // `staging`: kStagingBytes for this warpgroup alone.
    __device__ GroupStore(const GroupOut& out, const EpilogueParams& params, u32 staging, const GroupGate& gate)
        : out_(out), params_(params), numbers_(params), staging_(staging), gate_(gate) {}

    // Store d.  With GATED, d is the gate, and what is stored is its product with what the other warpgroup gives.
    __device__ void store(const Sum (&d)[BLOCK_N / 2], const Part& part) {
        const Rows rows(*this, part, 0);
#pragma unroll
        for (int chunk = 0; chunk < BLOCK_N / kChunk; chunk++) {
            const int column = part.first + chunk * kChunk;
            if (column >= part.end) continue;
            Value x[kChunk / 2];
#pragma unroll
            for (int piece = 0; piece < kChunk / kPiece; piece++) {
                auto& of_piece = reinterpret_cast<Value(&)[kPiece / 2]>(x[piece * kPiece / 2]);
                fill(of_piece, d, chunk * kChunk + piece * kPiece, rows, part);
                if (GATED && column + piece * kPiece < part.end) gate(of_piece);
            }
            sync();  // all have read the last chunk
            arrange(x);
            sync();
            write_lines(part.row, column, part.end);
        }
    }
    // GATED: hand d, the gated projection, over to the warpgroup that has the gate.
    __device__ void give(const Sum (&d)[BLOCK_N / 2], const Part& part) {
        const Rows rows(*this, part, 1);
#pragma unroll
        for (int first = 0; first < BLOCK_N; first += kPiece) {
            if (part.first + first >= part.end) continue;
            Value x[kPiece / 2];
            fill(x, d, first, rows, part);
            gate_.give(x);
        }
    }

  private:
    using Terms = EpilogueTerms<float>;
    static constexpr int kBits = GATED ? EPILOGUE & ~kActivation : EPILOGUE;  // a gate is activated later
    using Value = conditional<!GATED && EPILOGUE == 0, Sum, float>;
    static constexpr int kPiece = GroupGate::kPiece;
    static constexpr int kUnits = kLineBytes / 16, kStep = 128 / kUnits;  // of a line; lines at a time

    // Of every 8-column block a thread has four elements: rows g and g + 8, columns 2 t and 2 t + 1.
    __device__ static int first_row() { return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4; }
    __device__ static int first_column() { return threadIdx.x % 4 * 2; }
    __device__ static void sync() { group_sync(1 + threadIdx.x / 128, 128); }

    // The terms of this thread's rows, of one half of the rows of A.
    struct Rows {
        Terms terms[2];

        __device__ Rows(const GroupStore& store, const Part& part, int half) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = part.row + first_row() + 8 * i, m = store.out_.m;
                const long long at = (long long)(part.group * (GATED ? 2 : 1) + half) * m + row;
                if (row < m) terms[i] = row_terms<EPILOGUE, float>(store.params_, at);
            }
        }
    };

    // The values of the sums from column `first` of the tile on.
    template <int size>
    __device__ void fill(Value (&x)[size], const Sum (&d)[BLOCK_N / 2], int first, const Rows& rows, const Part& part) const {
#pragma unroll
        for (int i = 0; i < size; i++) {
            const int column = part.first + first + i / 4 * 8 + first_column() + i % 2;
            Terms of_column;
            if ((EPILOGUE & kColumnScale) && column < part.end) of_column = column_terms<EPILOGUE, float>(params_, column);
            x[i] = value(d[first / 2 + i], rows.terms[i / 2 % 2], of_column);
        }
    }
    __device__ Value value(Sum sum, const Terms& of_row, const Terms& of_column) const {
        return epilogue_value<Kind::OUTPUT, kBits, ACTIVATION>(sum, params_, 0, 0, 0, of_row, of_column, numbers_);
    }
    __device__ void gate(Value (&x)[kPiece / 2]) {
        float gated[kPiece / 2];
        gate_.take(gated);
        constexpr bool rough = kOutBytes <= 2;
#pragma unroll
        for (int i = 0; i < kPiece / 2; i++)
            x[i] = activate<ACTIVATION, rough>(float(x[i]), numbers_.lower, numbers_.upper) * gated[i];
    }

    __device__ void arrange(const Value (&values)[kChunk / 2]) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
        for (int j = 0; j < kChunk / 8; j++) {
            const Value* x = values + 4 * j;
            if constexpr (kOutBytes == 2) {
                if (j % 2) continue;  // two blocks at a time: 16 rows by 16 columns, as four 8x8 matrices
                const int row = 16 * warp + 8 * (lane / 8 % 2), column = 8 * (j + lane / 16) + lane % 8;
                store_matrices_transposed(staging_ + staged(row, column), pair(x), pair(x + 2), pair(x + 4), pair(x + 6));
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    put(staged(first_row() + 8 * (i / 2), 8 * j + first_column() + i % 2), Out::store(x[i]));
            }
        }
    }
    __device__ static u32 pair(const Value* x) { return pair_of<Kind::OUTPUT>(float(x[0]), float(x[1])); }
    __device__ void put(u32 at, Out::type x) const {
        *static_cast<Out::type*>(__cvta_shared_to_generic(staging_ + at)) = x;
    }
    __device__ void write_lines(int row, int column, int end) const {
        const int within = threadIdx.x % kUnits * (16 / kOutBytes);
        auto* out = static_cast<Out::type*>(out_.data) + row + within;
#pragma unroll
        for (int i = 0; i < kLines; i += kStep) {
            const int line = i + threadIdx.x % 128 / kUnits;
            const uint4 unit = load_shared4(staging_ + staged(within, line));
            if (column + line < end && row + within < out_.m)
                *reinterpret_cast<uint4*>(out + (column + line) * out_.pitch) = unit;
        }
    }

    const GroupOut& out_;
    const EpilogueParams& params_;
    EpilogueNumbers<float> numbers_;
    u32 staging_;
    GroupGate gate_;
};
