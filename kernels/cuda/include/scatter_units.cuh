// scatter_units: how hybrid_scatter.cu stores the non-zeros of a unit: up to 128 rows by 64 columns of the matrix,
// or up to 64 rows by 128 columns.
//
// In shared memory a unit is a dense tile of 128 rows by 64 columns.  (Of a unit with 128 columns, columns 64 to 127
// are rows 64 to 127 of the tile.)  The rows of the tile are 128 bytes, swizzled as the tensor cores require: the
// 16-byte chunk c of row r lies at c ^ r % 8.  Lane l of a warp stores the elements that fall into bank l, which are
// an even and an odd one of every row.  So the stores of a warp never conflict, and the position of an element is
// just its row.
//
//   group   [32 lanes][8 elements], then [32 lanes][8 rows, a byte each]
//           elements 0 to 3 are even ones, 4 to 7 odd ones; a list that is too short repeats its last element
//   line    [32 lanes][word]: elements that the groups do not hold, of any bank; the last word is repeated
//
//   word    31 .. 16                  15 .. 0
//           byte of the tile, even    element
//
// A unit is its groups, 768 bytes each, and then its lines, 128 bytes each and at most kMostLines.  It has as many
// groups as make it the shortest.  The words in the lines are ordered such that a line mostly goes to different
// banks: the first one of every bank, then the second ones, and so on.
//
// With BASE a unit begins with a 2:4 tile.  Only the elements that do not fit it are scattered, into a tile that has
// just the columns 2 and 3 of every group of four.
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
