// apply_epilogue: the epilogue of a product whose accumulators lie in memory.
//
//   acc [batch, m, n]  ACCUMULATOR, row-major      (read)
//   out [batch, m, n]  OUTPUT, any strides         (written)
//
// For products that another library has computed.  Neighbouring threads take neighbours in a row.
//
// Macros: ACCUMULATOR OUTPUT, and those of epilogue.cuh.
//
// Reference: reference.apply_epilogue.  Launcher: kernels/dense.py.
#include "epilogue.cuh"

extern "C" __global__ void __launch_bounds__(256) apply_epilogue(
    const Scalar<Kind::ACCUMULATOR>::type* acc, Scalar<Kind::OUTPUT>::type* out,
    long long out_row, long long out_column, long long out_batch,
    long long m, long long n, long long batch, __grid_constant__ const EpilogueParams params) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < batch * m * n; i += step) {
        const long long column = i % n, row = i / n % m, product = i / (m * n);
        out[product * out_batch + row * out_row + column * out_column] =
            epilogue<Kind::OUTPUT, EPILOGUE, ACTIVATION>(acc[i], params, product, row, column);
    }
}
