// scatter_parts: what the sums of a block of hybrid_scatter.cu become.
//
//   the band of a part is     its sums
//   of this block alone       are arranged in the block's stages, if these are needed no more, and stored as lines by all
//                             threads; otherwise each thread stores its own
//   of this cluster           are added up by its blocks directly, then arranged and stored as lines
//   shared by other blocks    are given to global memory, and the blocks add up a share each
#pragma once

// Where a thread's four sums of one tile of eight columns (or rows, if b is the left operand) belong in the result;
// `member` is 128 * array + thread.
class Place {
  public:
    __device__ Place(const Rows& band, int tile, int member, const Product& out) {
        const int lane = member % 32, across = 8 * tile + lane % 4 * 2, down = member / 32 * 16 + lane / 4;
        const int row = band.first + (kColumnsFirst ? across : down);
        const int column = kColumnsFirst ? down : across;
        to_ = out.to + row * out.row + column * out.column;
        next_ = kColumnsFirst ? out.row : out.column, eighth_ = 8 * (kColumnsFirst ? out.column : out.row);
        across_ = kColumnsFirst ? band.end - row : out.n - column;
        down_ = kColumnsFirst ? out.n - column : band.end - row;
    }
    __device__ void store(const float4& x) const {
        const float sums[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (i % 2 < across_ && i / 2 * 8 < down_) to_[i % 2 * next_ + i / 2 * eighth_] = Out::store(sums[i]);
    }
    __device__ void to_next_tile() { to_ += 8 * next_, across_ -= 8; }

  private:
    Out::type* to_;
    Count next_, eighth_;                  // strides
    int across_, down_;                    // rows and columns left in the band, from the first sum on
};

// The parts of a block.
struct Parts {
    const Left& a;
    const Part* parts;                     // of this block
    int count;
    const Others& others;
    const Shares& shares;
    const BandStore& store;
    const Product& out;

    // By the consumers: multiply each part, the first of which is `next`, and pass its sums on.
    __device__ void multiply(Consumer& consumer, Part next) const {
        for (int i = 0; i < count; i++) {
            const Part part = next;
            const bool last = i == count - 1;
            next = parts[i + 1];
            consumer.multiply(part.steps);
            if (alone(part, last))
                arrange(consumer.sums);
            else
                hand_over(consumer.sums, part, i, last);
        }
    }
    // By all threads: store what was arranged, and add up what blocks have given.
    __device__ void finish() const {
        for (int i = 0; i < count; i++) {
            const Part part = parts[i];
            const bool last = i == count - 1;
            if (alone(part, last)) {
                __syncthreads();
                store.copy(a.band(part.band), out);
            } else if (kSharing != Sharing::apart && part.blocks > 1) {
                others.collect(part.group(), last, [&](const float4& x, int tile, int member) {
                    Place(a.band(part.band), tile, member, out).store(x);
                });
            }
        }
    }

  private:
    // Whether the sums can be arranged in shared memory: no block outside of the cluster shares the band, and the block
    // needs its stages no more.
    __device__ static bool alone(const Part& part, bool last) { return CLUSTER > 1 || part.blocks == 1 && last; }
    __device__ void arrange(const Sums (&sums)[kArrays]) const {
        shares.give(sums);
        group_sync(1, 32 * kConsumers);  // no instruction reads tiles any more
        shares.collect(sums, [&](int piece, const float4& x) { store.put(piece, x); });
    }
    // Store the sums of the `index`-th part, or give them to the blocks that share its band.
    __device__ void hand_over(const Sums (&sums)[kArrays], const Part& part, int index, bool last) const {
        const Rows band = a.band(part.band);
        if (Others::kKeeps && last) group_sync(1, 32 * kConsumers);  // no instruction reads tiles any more
#pragma unroll
        for (int i = 0; i < kArrays; i++) {
            const int member = i * 128 + threadIdx.x;
            const Sums& x = sums[i];
            if (part.blocks > 1) {
                others.give(x, member, part.group(), 2 * blockIdx.x + (index > 0), last);
                continue;
            }
            Place place(band, 0, member, out);
#pragma unroll
            for (int j = 0; j < kSumTiles; ++j, place.to_next_tile())
                place.store({x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]});
        }
    }
};
