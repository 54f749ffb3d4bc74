/* SPDX-License-Identifier: MIT */
/*
 * What the host (src/cuda/grouped.c) hands to the kernels of grouped products. It depends on
 * nothing but addresses and limits. Either grouped_setup reads the sizes in device memory and
 * writes one record for each product, and the GEMM kernel computes what the records say; or, where
 * all groups share their maps, the GEMM kernel reads the sizes itself.
 */
#ifndef DGI_GROUPED_ARGS_H
#define DGI_GROUPED_ARGS_H

#include "../../core/grouped_schedule.h"
#include "gemm_args.h"

enum { DGI_MOST_PRODUCTS = 1024 }; /* of one launch: a thread each in grouped_setup */
enum { DGI_MOST_CLUSTERS = 160 };  /* of CTAs, which is more than any Hopper GPU has room for */
enum { DGI_SETUP_RECORDS = 4 };    /* that a CTA of grouped_setup writes */

/* Products of the launch that begins with product `first`. */
static DGI_HOST_DEVICE int32_t dgi_products_from(int32_t count, int32_t first)
{
    return count - first < DGI_MOST_PRODUCTS ? count - first : DGI_MOST_PRODUCTS;
}

/* A product as the GEMM kernel reads it. */
typedef struct dgi_grouped_record {
    dgi_gemm_product gemm;
} __attribute__((aligned(128))) dgi_grouped_record;

/* What the host says of a product, or of all groups: their largest sizes, what leads to each. */
typedef struct dgi_grouped_product {
    dgi_gemm_product gemm; /* its maps have the boxes and types, and any place and sizes */
    const uint8_t *a, *b;
    int64_t lda, ldb;
} __attribute__((aligned(128))) dgi_grouped_product;

typedef enum dgi_device_grouping { /* dg_grouping, and tables */
                                   DGI_DEVICE_BY_END = 0,
                                   DGI_DEVICE_BY_ROW,
                                   DGI_DEVICE_MASKED,
                                   DGI_DEVICE_K_COLUMNS,
                                   DGI_DEVICE_K_BLOCKS,
                                   DGI_DEVICE_TABLE
} dgi_device_grouping;

/* New values of a table's problems: dg_table_values. */
typedef struct dgi_device_values {
    const int32_t *m, *n, *k;
    void *const *a, *const *b, *const *c, *const *d, *const *bias;
    void *const *scale_a, *const *scale_b, *const *scale_d;
} dgi_device_values;

/* Where each group's operands lie, and their sizes. */
typedef struct dgi_device_groups {
    const int32_t *sizes; /* as in dg_groups */
    int32_t grouping, count, alignment;
    int64_t a_stride, b_stride, c_stride, d_stride, bias_stride; /* bytes */
    int64_t scale_a_stride, scale_b_stride, scale_d_stride;
    const uint8_t *const *packed; /* each group's packed weights, or NULL */
    int64_t packed_scales;        /* bytes from there to their scales     */
} dgi_device_groups;

/* The schedule (grouped_schedule.h) in device memory, and room for the sums of cut tiles. */
typedef struct dgi_device_schedule {
    dgi_turn *turns;    /* one for each product, in the order of the schedule         */
    dgi_cut *cuts;      /* one more than there are clusters                           */
    uint32_t *arrivals; /* parts of a cut tile that are there, for each warp of a cluster */
    float *slots;       /* sums of parts: accumulators as they lie. NULL: none is cut */
} dgi_device_schedule;

typedef struct dgi_grouped_setup_args {
    dgi_grouped_product like;      /* groups: the first one, at its largest      */
    dgi_device_groups groups;      /* tables: only how many                      */
    dgi_grouped_product *problems; /* tables: groups.count of them               */
    dgi_device_values values;      /* tables: changes them first                 */
    int32_t first;                 /* this launch: those from here, DGI_MOST_PRODUCTS at most */
    dgi_rates rates;
    int32_t clusters, arrivals;           /* how many there are */
    int32_t scale_a_block, scale_b_block; /* groups along K: elements that share a scale, or 0 */
    int32_t scale_a_cols, scale_b_cols;
    /* Written, for all launches of a call; the schedule for each its own: */
    dgi_grouped_record *records;
    dgi_device_schedule schedule;
    int32_t *ranges; /* each group's first row and end, or NULL */
} dgi_grouped_setup_args;

/* What is left to do behind the products. */
typedef struct dgi_grouped_finish_args {
    uint8_t *d;
    int64_t pitch, row_bytes, stride; /* bytes; `stride` from one group's D to the next's   */
    const uint8_t *staged;            /* results that are to be put into D, or NULL         */
    int64_t staged_pitch;
    const int32_t *sizes, *ranges;
    const int32_t *gather, *scatter; /* or NULL                                            */
    int32_t grouping, count, rows;
    int32_t gather_rows, d_rows; /* what gather and scatter may name                   */
    int32_t zero;
} dgi_grouped_finish_args;

/*
 * How far a warp of the GEMM kernel has come; in shared memory, behind what dense kernels have
 * there, for it would take too many registers. The lanes look at 32 products together, each at one.
 */
typedef struct dgi_warp_walk {
    dgi_gemm_args args; /* of the product in work */
    const dgi_gemm_maps *maps;
    int32_t rank;    /* records: the next product of the cluster's stretch       */
    int32_t tile;    /* the cluster's next in turn, counted through all products */
    int32_t batch;   /* the first of the 32                                      */
    int32_t end[32]; /* of each one's tiles                                      */
    /* Groups: of each one, in the whole A; records: dgi_turn's offset and product. */
    int32_t first[32], rows[32];
} dgi_warp_walk;
#define DGI_WARP_WALKS_BYTES(groups) (((groups) + 1) * 4 * (int)sizeof(dgi_warp_walk))

/* The GEMM kernel's: records, or groups that share their maps. */
typedef struct dgi_grouped_args {
    dgi_gemm_product like; /* groups: the first one at its largest, with the maps of all */
    dgi_device_groups groups;
    const dgi_grouped_record *records; /* groups.count of them, or NULL */
    dgi_device_schedule schedule;      /* of records */
} dgi_grouped_args;

#endif
