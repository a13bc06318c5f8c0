// dequantise: a quantised 2:4 matrix as one of 16 bits: integers times factors, rounded to float32 and then to 16 bits.
//
//   bricks [row blocks, K atoms, bytes]     elements, codes and factors (bricks.cuh)           (read once)
//   values [m, values_per_row]              OUTPUT, rows on 16-byte boundaries                 (written)
//   packed [K atoms, M atoms, 1024]         the codes, in the order for 16-bit elements        (written)
//
// A thread takes 16 bytes of a row of a brick, and writes their 32 or 16 elements.  The threads that take the first ones
// of 16 rows copy their codes, too.
//
// Macros: OUTPUT, a type of 16 bits, and BITS.
//
// Reference: reference_quantised.dequantise.  Launcher: kernels/dequantise.py.
#include "bricks.cuh"
#include "packed_layout.cuh"

using Output = Scalar<Kind::OUTPUT>;
constexpr int kPieces = kChunkSteps * 16;  // elements in 16 bytes

// A pair of integers, as float16, times the factor of their row.
__device__ unsigned scaled(unsigned pair, float factor) {
    const float2 x = __half22float2(reinterpret_cast<const __half2&>(pair));
    const typename Output::type y[2] = {Output::store(x.x * factor), Output::store(x.y * factor)};
    return reinterpret_cast<const unsigned&>(y);
}

// Eight elements, one half of a step, of the words of the four lanes.
template <int step, int half> __device__ uint4 eight(const uint4& words, float factor) {
    const auto of = [&](unsigned word) { return scaled(widen_word<Kind::float16, step, half>(word), factor); };
    return {of(words.x), of(words.y), of(words.z), of(words.w)};
}

template <int step> __device__ void store_step(Output::type* to, int left, const uint4& words, float factor) {
    if (left > 16 * step) *reinterpret_cast<uint4*>(to + 16 * step) = eight<step, 0>(words, factor);
    if (left > 16 * step + 8) *reinterpret_cast<uint4*>(to + 16 * step + 8) = eight<step, 1>(words, factor);
}

extern "C" __global__ void __launch_bounds__(256) dequantise(
    const char* bricks, Output::type* values, long long pitch, char* packed, long long m, long long k,
    long long values_per_row, long long m_atoms) {
    const long long atoms = (k + kAtomK - 1) / kAtomK, blocks = (m + kBrickRows - 1) / kBrickRows;
    const long long total = blocks * atoms * kChunks * kBrickRows, stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += stride) {
        const int line = i % kBrickRows, chunk = i / kBrickRows % kChunks;
        const long long number = i / (kBrickRows * kChunks), atom = number % atoms, block = number / atoms;
        const char* brick = bricks + number * kBrick;
        const long long row = block * kBrickRows + line;
        if (chunk == 0) {
            const long long to = (atom * m_atoms + row / kAtomM) * kAtomBytes + row % kAtomM / kBrickRows * kCodeBytes;
            reinterpret_cast<uint4*>(packed + to)[line] = reinterpret_cast<const uint4*>(brick + kCodesAt)[line];
        }
        if (row >= m) continue;
        const uint4 words = reinterpret_cast<const uint4*>(brick + chunk * kChunkBytes)[line];
        const float factor = reinterpret_cast<const float*>(brick + kFactorsAt)[line];
        const long long column = atom * (kBrickColumns / 2) + chunk * kPieces;
        const int left = (int)min(values_per_row - column, (long long)kPieces);
        Output::type* to = values + row * pitch + column;
        store_step<0>(to, left, words, factor);
        if constexpr (kChunkSteps > 1) store_step<1>(to, left, words, factor);
    }
}
