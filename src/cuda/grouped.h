/* SPDX-License-Identifier: MIT */
/* What grouped products (grouped.c) and tables (table.c) launch (grouped_launch.c). */
#ifndef DGI_CUDA_GROUPED_H
#define DGI_CUDA_GROUPED_H

#include "cuda/context.h"
#include "cuda/device/grouped_few_args.h"

/*
 * A product for grouped_setup, from a GEMM whose addresses may be NULL: its maps get boxes, types
 * and swizzle, and any place in memory.
 */
dg_status dgi_cuda_describe_product(dgi_cuda *cuda, const dgi_sm90_kernel *kernel,
                                    const dg_gemm *gemm, dgi_varying vary,
                                    dgi_grouped_product *product);

/* The kernel for products of like kind, or the one that the context's options name. */
dg_status dgi_cuda_choose_grouped(const dgi_cuda *cuda, const dgi_typical *typical,
                                  int32_t *kernel);

/* Records of products and all that goes with them, in device memory. */
typedef struct dgi_prepared {
    int32_t count;
    dgi_grouped_record *records;
    dgi_device_schedule schedule;
} dgi_prepared;

/*
 * How many bytes that takes, and where it lies in `memory`, which may still be NULL. `k`: the
 * largest K that a product may have.
 */
size_t dgi_cuda_prepare(const dgi_cuda *cuda, const dgi_sm90_kernel *kernel, int32_t count,
                        int64_t k, char *memory, dgi_prepared *prepared);

/* Fills in what depends on the kernel and on where records lie, and launches grouped_setup. */
dg_status dgi_cuda_launch_setup(dgi_cuda *cuda, const dgi_sm90_kernel *kernel,
                                const dgi_prepared *prepared, dgi_grouped_setup_args *args,
                                CUstream stream);
dg_status dgi_cuda_launch_grouped(dgi_cuda *cuda, int32_t kernel, dgi_grouped_args *args,
                                  CUstream stream);
/* Launches a kernel for groups with few rows. */
dg_status dgi_cuda_launch_grouped_few(dgi_cuda *cuda, const dgi_decode_plan *plan,
                                      dgi_grouped_few_args *args, CUstream stream);
/* Launches the products that grouped_setup has described. */
dg_status dgi_cuda_launch_records(dgi_cuda *cuda, int32_t kernel, const dgi_prepared *prepared,
                                  CUstream stream);

#endif
