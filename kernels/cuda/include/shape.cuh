// shape: extents and strides of a product, passed by value; sparse_tile.py lays it out.
#pragma once

struct Shape {
    int m, n, k, values_per_row;
    int meta_atoms_m;                               // atoms along M of the packed metadata
    int batch;
    long long a_pitch, a_batch, meta_batch;         // bytes
    long long b_row, b_column, b_batch;             // elements
    long long out_row, out_column, out_batch;       // elements
};
