// scatter_units: how the non-zeros of a unit of a matrix are stored for hybrid_scatter.cu: up to 128 rows by 64 columns, or
// up to 64 rows by 128 columns.
//
// In shared memory a unit is a dense tile of 128 rows by 64 columns; of one of 128 columns, rows 64 and on of the tile
// are its columns 64 and on.  The rows of the tile are 128 bytes whose 16-byte chunks are exchanged as the tensor
// cores do (chunk c of row r lies at c ^ r % 8).  Lane l of a warp stores what falls into bank l: two elements
// of every row, the even and the odd one.  So stores never collide, and a place is but a row.
//
//   group   [32 lanes][8 elements], then [32 lanes][8 rows, a byte each]
//           elements 0 .. 3 are even ones, 4 .. 7 odd ones; lists that are too short repeat their last
//   line    [32 lanes][word]: what the groups do not hold, of any bank; the last word is repeated
//
//   word    31 .. 16                  15 .. 0
//           byte of the tile, even    element
//
// A unit is its groups, 768 bytes each, and then its lines, 128 bytes each and no more than kMostLines: as
// many groups as make it the shortest.  The words of lines begin with the first of every bank, so they mostly meet different banks.
//
// With BASE a unit is a 2:4 tile, and what spills over it: the tile into which elements are scattered holds but
// columns 2 and 3 of every group of four.
#pragma once

constexpr int kTileRows = 128, kTileColumns = 64;
constexpr int kUnitColumns = UNIT_COLUMNS, kHalves = kUnitColumns / kTileColumns;
constexpr int kUnitRows = kTileRows / kHalves;                           // at most
constexpr int kTileLines = BASE ? kTileRows / 2 : kTileRows;             // of 128 bytes
constexpr int kTileBytes = kTileLines * 128;
constexpr int kValueBytes = kTileRows * kTileColumns;                    // of the 2:4 tile; metadata follow
constexpr int kBaseBytes = BASE ? kValueBytes + 1024 : 0;
constexpr int kLineBytes = 128, kGroupBytes = 768, kGroupElements = 4;   // elements of each list in a group
constexpr int kMostLines = 7;
