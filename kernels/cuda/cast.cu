// cast: convert a matrix of one element type to another, row by row.
//
//   x   [rows, columns]  ELEMENT, any row pitch   (read)
//   out [rows, columns]  OUTPUT, any row pitch    (written)
//
// Rounds to nearest even; integers and fp8 saturate.  All types but float64 are made of float32, so a float64 element
// is rounded twice on its way to a narrower type.
//
// Reference: reference.to_dtype.  Launcher: kernels/cast.py.
#include "numeric.cuh"

using Element = Scalar<Kind::ELEMENT>;
using Output = Scalar<Kind::OUTPUT>;

extern "C" __global__ void __launch_bounds__(256) cast(
    const Element::type* x, long long x_pitch, Output::type* out, long long out_pitch,
    long long rows, long long columns) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < rows * columns; i += step) {
        const long long row = i / columns, column = i % columns;
        out[row * out_pitch + column] = Output::store(typename Output::real(Element::load(x[row * x_pitch + column])));
    }
}
