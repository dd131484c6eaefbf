// Attention of rows whose keys and values are in pages of a cache: generation.
//
// Legend: S rows, T query tokens, H heads, K kv heads, d head_dim.
#pragma once

#include <vector>

#include "unsloth/ops/attention.h"
#include "unsloth/ops/kv_cache.h"

namespace unsloth::ops {

/// Rows that resume from keys in the cache: a row's queries are at the end of its keys.
struct PagedRows {
    std::vector<int32_t> q_offsets;  ///< [S + 1], from 0
    std::vector<int32_t> lengths;    ///< [S] keys, those of the queries included
    std::vector<int32_t> pages;      ///< [S, most_pages] of a row's keys, in order; after these anything
    int64_t most_pages = 0;
    int64_t decoding = 0;            ///< this many rows, the first ones, have one query each
    at::Tensor lengths_S, pages_SM;  ///< int32, the same on the device; read on CUDA only

    // Set by place_rows(), for rows that the general form handles: on CUDA those after `decoding`.
    std::vector<Segments> segments;  ///< one a row
    std::vector<at::Tensor> keys;    ///< int32: the rows of the cache; undefined where they follow each other
    int64_t count() const { return static_cast<int64_t>(lengths.size()); }
    int64_t tokens() const { return q_offsets.empty() ? 0 : q_offsets.back(); }
};

/// Bytes of ctx.workspace that paged_attention takes for up to `rows` decoding rows of up to `context` keys.
int64_t paged_attention_workspace(const AttentionShape& shape, at::Device device, int64_t rows, int64_t context);

/// For decoding rows the work that is issued depends on their number and this alone: a bound of their lengths.
int64_t planned_length(const PagedRows& rows);

/// Before the first layer of a pass: fills what follows from the host's vectors. CheckError where they do not fit each
/// other.
void place_rows(Context& ctx, PagedRows& rows);

/// out_THd = attention of each row's queries over its keys, as attention_forward's. q, out and sinks as there; the
/// cache's values of the same type, or codes. On CUDA decoding rows have a kernel of their own (any of the three types,
/// head_dim a multiple of 8 up to 256; of codes where codes_keys() says so): fp32 sums in an order that depends on a
/// row's length alone; tensor cores, where they serve, take the weights of the values rounded to the type. Codes give
/// what a cache of the values they stand for would, but for an ulp here and there (paged_attention_mma.cuh).
void paged_attention(Context& ctx, const AttentionShape& shape, const PagedRows& rows, const at::Tensor& q_THd,
                     const KvCache& cache, const at::Tensor& out_THd, const at::Tensor& sinks_H = {});

}  // namespace unsloth::ops
