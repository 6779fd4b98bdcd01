// Attention in bfloat16, with or without dropout, for CPUs with AVX512-BF16 or AMX: the code that both passes share.
//
// The kernels process one block of queries at a time, whose scores never leave the cache. The forward pass keeps two
// numbers for each query, from which the backward pass recomputes the probabilities (Dao, Fu, Ermon, Rudra, Re:
// "FlashAttention", NeurIPS 2022, algorithms 1 and 4).
// Scores, softmax, dropout and sums are float32; operands of the second product are rounded to bfloat16.

#pragma once

#include <algorithm>

#include "amx.hpp"
#include "dropout_rule.hpp"
#include "masks.hpp"
#include "packing.hpp"
#include "tiles.hpp"
#include "vectors.hpp"

namespace attention {

// The most queries of a block: a multiple of a tile's rows and of a pair. AMX_QUERIES: with AMX, a multiple of the
// numbers that one instruction sums.
constexpr size_t QUERIES = 48, AMX_QUERIES = 64, MOST_QUERIES = std::max(QUERIES, AMX_QUERIES);
static_assert(QUERIES % tiles::ROWS == 0 && AMX_QUERIES % amx::NUMBERS == 0);
// The most keys that are packed at a time: a multiple of the blocks of random numbers. The backward pass also sums
// the gradients of this many keys at a time, so that its memory does not grow with the number of keys; with AMX, of
// AMX_KEYS.
constexpr size_t KEYS = 1024, AMX_KEYS = 512;
static_assert(KEYS % philox::BLOCK == 0 && AMX_KEYS % philox::BLOCK == 0 && philox::BLOCK % amx::NUMBERS == 0);

// Numbers [batch, head, row, feature]; features are contiguous, steps are in elements.
struct Tensor {
  void* values;
  size_t batch_step, head_step, row_step;
};

// `sharing`: the number of consecutive query heads that share one head of keys and values. Of rows that are end to end,
// `batches` is the number of rows, `queries` and `keys` are the tokens of the longest.
struct Sizes {
  size_t batches, heads, sharing, queries, keys, features;
};

// Of a query's scores. Not the logarithm of the sum of their exponentials: a large score would absorb that of the sum.
struct Softmax {
  float highest;     // infinite if every key is hidden: then each exponential is 0
  float inverse_sum; // one over the sum of the exponentials of the scores minus the highest, 0 if every key is hidden
};

// How the work on a head is divided, and the sizes of the workspaces, which are padded with zeros.
struct Padded {
  Padded(const Sizes& sizes, bool amx)
      : amx(amx),
        step(amx ? amx::NUMBERS : LANES),
        query_step(amx ? amx::NUMBERS : 2),
        keys(padded(sizes.keys, step)),
        features(padded(sizes.features, step)),
        most_queries(amx ? AMX_QUERIES : QUERIES),
        queries(keys <= 1024 ? most_queries : keys <= 2048 ? most_queries / 2 : most_queries / 4),
        tile(std::min(keys, amx ? AMX_KEYS : KEYS)),
        key_row(keys + (amx ? GAP : 0)),
        tile_row(tile + (amx ? GAP : 0)),
        rows(std::max(tile, most_queries)),
        blocks(padded(sizes.keys, philox::BLOCK) / philox::BLOCK) {}

  // sums = left right, or with ADDS sums += left right. The pairs of `left` are contiguous.
  template <bool ADDS>
  void product(tiles::Left left, tiles::Right right, tiles::Sums sums, size_t row_count, size_t columns,
               size_t pairs) const {
    (amx ? amx::product<ADDS> : tiles::product<ADDS>)(left, right, sums, row_count, columns, pairs);
  }

  bool amx;
  size_t step;         // keys and features are padded to multiples of it
  size_t query_step;   // queries of a block are padded to multiples of it, where a product sums over them
  size_t keys;         // all keys
  size_t features;
  size_t most_queries; // of a block in the backward pass
  size_t queries;      // of a block in the forward pass, whose scores fit in the cache
  size_t tile;         // keys that are packed at a time; in the backward pass, keys of a block
  size_t key_row;      // numbers in memory from row to row of `keys` numbers
  size_t tile_row;     // the same for `tile` numbers
  size_t rows;         // the most that are packed at a time
  size_t blocks;       // of random numbers, for one row of scores

 private:
  // AMX loads 16 rows at once. Rows that are a multiple of 1,024 numbers apart would share one set of the cache.
  static constexpr size_t GAP = 32;
};

// The lanes of the vector at `i` that are before `end`.
AVX512 inline __mmask16 lanes_before(size_t end, size_t i) {
  return i < end ? first_lanes(end - i) : 0;
}

template <masks::Type MASK>
AVX512_BF16 inline __m512 score_of(const float* product, const char* mask, size_t i, __mmask16 lanes, __m512 factor) {
  return masks::add<MASK>(_mm512_mul_ps(_mm512_loadu_ps(product + i), factor), mask, i, lanes);
}

struct Attention {
  Sizes sizes;
  Tensor query, key, value;
  Tensor out;      // of the forward pass
  Tensor wide_out; // the same in float32, for the backward pass. Only for rows with several tiles of keys
  masks::Mask mask;
  float scale;
  uint32_t causal; // 1: a query attends to no key after its own position
  uint32_t amx;    // 1: products use AMX
  dropout::Rule rule;
  Softmax* softmax; // [batch, head, query]
  // nullptr, or where rows of one batch begin that are end to end, and the number of all tokens: the queries of a row
  // attend to its own keys only.
  const int64_t* starts;
};

// The batches of a call, or one of its rows that are end to end.
struct Part : Attention {
  explicit Part(const Attention& all) : Attention(all) {}

  Part(const Attention& all, size_t row, const Padded& longest)
      : Attention(all), start(all.starts[row]), earlier_blocks(start * all.sizes.heads * longest.blocks) {
    sizes.batches = 1;
    sizes.queries = sizes.keys = all.starts[row + 1] - start;
    softmax += start * sizes.heads;
  }

  // Head `number` of all batches, from `row` on. Number: of the tensor, by default bfloat16.
  template <typename Number = uint16_t>
  Number* head(const Tensor& tensor, size_t number, size_t row) const {
    return static_cast<Number*>(tensor.values) + number / sizes.heads * tensor.batch_step +
        number % sizes.heads * tensor.head_step + (start + row) * tensor.row_step;
  }

  // For keys and values.
  template <typename Number = uint16_t>
  const Number* shared_head(const Tensor& tensor, size_t number, size_t row) const {
    return static_cast<const Number*>(tensor.values) + number / sizes.heads * tensor.batch_step +
        number % sizes.heads / sizes.sharing * tensor.head_step + (start + row) * tensor.row_step;
  }

  size_t visible(size_t query_row) const {
    return causal ? std::min(sizes.keys, query_row + 1) : sizes.keys;
  }

  const char* mask_row(size_t number, size_t query_row, size_t key = 0) const {
    return mask.row(number / sizes.heads, number % sizes.heads, query_row, key);
  }

  Softmax& softmax_of(size_t number, size_t query_row) const {
    return softmax[number * sizes.queries + query_row];
  }

  uint64_t first_block(size_t number, size_t query_row, const Padded& wide) const {
    return earlier_blocks + (number * sizes.queries + query_row) * wide.blocks;
  }

  size_t start = 0;            // the first token
  uint64_t earlier_blocks = 0; // of random numbers
};

// Calls work(part, sizes of the workspaces, head, memory) for each head, in the memory that bytes(sizes, sizes of the
// workspaces) needs at most. Returns as for_each.
template <typename Bytes, typename Work>
size_t for_each_head(const Attention& args, Bytes bytes, Work work) {
  const size_t heads = args.sizes.heads, batches = args.sizes.batches;
  const bool amx = args.amx != 0;
  const Padded longest(args.sizes, amx);
  if (args.starts == nullptr) {
    const Part all(args);
    return for_each(batches * heads, bytes(args.sizes, longest), amx,
                    [&](size_t number, Workspace space) { work(all, longest, number, space); });
  }
  const auto part = [&](size_t row) { return Part(args, row, longest); };
  size_t most = 0; // a shorter row may need more: its blocks have more queries
  for (size_t row = 0; row < batches; ++row) {
    const Sizes sizes = part(row).sizes;
    most = std::max(most, bytes(sizes, Padded(sizes, amx)));
  }
  return for_each(batches * heads, most, amx, [&](size_t number, Workspace space) {
    const Part row = part(number / heads);
    if (row.sizes.keys > 0) {
      work(row, Padded(row.sizes, amx), number % heads, space);
    }
  });
}

} // namespace attention
