/* SPDX-License-Identifier: MIT */
/*
 * The GEMM on Hopper, host side: the choice of a kernel, tensor maps, and the launch of the kernels
 * for many tokens. gemm_decode.c launches those for few.
 */
#include "cuda/context.h"

#include "core/formats.h"
#include "core/tuning_sm90.h"
#include "cuda/device/gemm_args.h"

_Static_assert((int)DGI_DEVICE_BF16 == (int)DG_BF16 && (int)DGI_DEVICE_UE8M0 == (int)DG_UE8M0,
               "device code numbers the types like the public header");

/*
 * Whether the copy engine can read the scales of A: FP32, the rows' side by side, and a column of
 * them for each part of K that the kernel promotes.
 */
static bool can_copy_scales(const dgi_sm90_kernel *kernel, const dg_scale *scale)
{
    return kernel->span != 0 && kernel->rows == 1 && scale->dtype == DG_F32 &&
           scale->block_rows == 1 && scale->block_cols == kernel->promote_k &&
           scale->col_phase == 0 && scale->row_stride == 1 && (uintptr_t)scale->data % 16 == 0 &&
           (scale->cols <= 1 || (scale->col_stride % 4 == 0 && scale->col_stride >= scale->rows));
}

bool dgi_cuda_can_copy_out(const dg_gemm *gemm)
{
    return dg_dtype_bytes(gemm->d.dtype) == 2 && gemm->beta == 0.0f &&
           dgi_cuda_can_copy(&gemm->d) && gemm->d.cols % 8 == 0;
}

dgi_device_matrix dgi_device_matrix_of(const dg_matrix *matrix)
{
    return (dgi_device_matrix){matrix->data, matrix->ld, matrix->dtype};
}

static dgi_device_scale device_scale(const dg_scale *scale, int32_t unit, bool varies)
{
    dg_scale of = *scale;
    of.cols = varies ? 2 : 1;
    return dgi_device_scale_of(&of, unit);
}

dgi_varying dgi_cuda_varying(const dg_gemm *gemm)
{
    return (dgi_varying){gemm->scale_a.cols > 1, gemm->scale_b.cols > 1};
}

int32_t dgi_cuda_scale_k(const dgi_sm90_kernel *kernel)
{
    return kernel->span != 0 ? kernel->promote_k : 0;
}

dgi_gemm_args dgi_cuda_product_args(int32_t scale_k, const dg_gemm *gemm, dgi_varying vary)
{
    const int32_t unit = scale_k != 0 ? scale_k : 1;
    return (dgi_gemm_args){
        .c = dgi_device_matrix_of(&gemm->c),
        .d = dgi_device_matrix_of(&gemm->d),
        .bias = dgi_device_matrix_of(&gemm->bias),
        .scale_a = device_scale(&gemm->scale_a, unit, vary.scale_a),
        .scale_b = device_scale(&gemm->scale_b, unit, vary.scale_b),
        .scale_d = dgi_device_scale_of(&gemm->scale_d, 1),
        .m = (int32_t)gemm->d.rows,
        .n = (int32_t)gemm->d.cols,
        .k = (int32_t)gemm->a.cols,
        .alpha = gemm->alpha,
        .beta = gemm->beta,
        .factors = scale_k == 0 || gemm->alpha != 1.0f || gemm->bias.dtype != DG_NONE,
        .packed = gemm->weights != NULL ? gemm->weights->data : NULL,
    };
}

static dg_status fill_args(dgi_cuda *cuda, const dg_gemm *gemm, const dgi_sm90_plan *plan,
                           dgi_gemm_product *product)
{
    const dgi_sm90_kernel *kernel = &dgi_sm90_kernels[plan->kernel];
    dgi_gemm_args *args = &product->args;
    dgi_gemm_maps *maps = &product->maps;
    *product = (dgi_gemm_product){
        .args = dgi_cuda_product_args(dgi_cuda_scale_k(kernel), gemm, dgi_cuda_varying(gemm)),
    };
    args->tile_rows = plan->tile_rows;
    args->tile_cols = plan->tile_cols;
    args->band = plan->band;
    args->copy_scales = gemm->a.cols > 0 && can_copy_scales(kernel, &gemm->scale_a);
    args->copy_out = dgi_cuda_can_copy_out(gemm);
    if (args->copy_out)
        DGI_TRY(dgi_cuda_describe(cuda, &gemm->d, 16, &maps->d));
    if (args->copy_scales)
        DGI_TRY(dgi_cuda_describe_scales(cuda, &gemm->scale_a, (uint32_t)kernel->tile_m,
                                         (uint32_t)(128 / kernel->promote_k), &maps->scale_a));
    if (args->k == 0)
        return DG_OK; /* A and B are empty and have no address */
    DGI_TRY(
        dgi_cuda_describe(cuda, &gemm->a, (uint32_t)(kernel->tile_m / kernel->cluster), &maps->a));
    if (args->packed != NULL)
        return DG_OK;
    return dgi_cuda_describe(cuda, &gemm->b, (uint32_t)kernel->tile_n, &maps->b);
}

dg_status dgi_cuda_launch_clusters(dgi_cuda *cuda, const dgi_launch *launch, void *args,
                                   CUstream stream)
{
    CUlaunchAttribute attributes[2];
    unsigned count = 0;
    if (launch->cluster > 1) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[count].value.clusterDim.x = (unsigned)launch->cluster;
        attributes[count].value.clusterDim.y = attributes[count].value.clusterDim.z = 1;
        count++;
    }
    if (cuda->dependent_launch) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[count].value.programmaticStreamSerializationAllowed = 1;
        count++;
    }
    CUlaunchConfig config = {
        .gridDimX = (unsigned)launch->ctas,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = (unsigned)launch->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = (unsigned)launch->shared_bytes,
        .hStream = stream,
        .attrs = attributes,
        .numAttrs = count,
    };
    return dgi_cuda_launch(cuda, launch->name, launch->function, &config, args);
}

dg_status dgi_cuda_launch_tiles(dgi_cuda *cuda, const dgi_sm90_kernel *kernel, CUfunction function,
                                int32_t ctas, int shared_bytes, void *args, CUstream stream)
{
    const dgi_launch launch = {
        kernel->name, function, ctas, kernel->cluster, (kernel->groups + 1) * 128, shared_bytes};
    return dgi_cuda_launch_clusters(cuda, &launch, args, stream);
}

/* ---- operands that the copy engine cannot address ------------------------------------ */

static int64_t aligned_pitch(const dg_matrix *matrix)
{
    return (matrix->cols + 15) / 16 * 16;
}

/* Bytes of a copy of the operand with aligned rows; 0 when it needs none. */
static size_t realigned_bytes(const dg_matrix *matrix)
{
    if (matrix->cols == 0 || dgi_cuda_can_copy(matrix))
        return 0;
    return ((size_t)matrix->rows * (size_t)aligned_pitch(matrix) + 255) / 256 * 256;
}

/* Copies the operand to *scratch when it needs that, and moves *scratch behind the copy. */
static dg_status realign(dgi_cuda *cuda, dg_matrix *matrix, char **scratch, CUstream stream)
{
    const size_t bytes = realigned_bytes(matrix);
    if (bytes == 0)
        return DG_OK;
    dgi_realign_args args = {
        .source = matrix->data,
        .target = (uint8_t *)*scratch,
        .rows = matrix->rows,
        .row_bytes = matrix->cols,
        .source_pitch = matrix->ld,
        .target_pitch = aligned_pitch(matrix),
    };
    DGI_TRY(dgi_cuda_launch_small(cuda, DGI_SMALL_realign, &args,
                                  args.rows * (args.target_pitch / 16), stream));
    matrix->data = *scratch;
    matrix->ld = args.target_pitch;
    *scratch += bytes;
    return DG_OK;
}

/* ---- running ------------------------------------------------------------------------- */

static dg_status check_devices(dgi_cuda *cuda, const dg_gemm *gemm)
{
    const bool empty = gemm->a.cols == 0; /* then A, B and perhaps their scales have no memory */
    const bool packed = gemm->weights != NULL;
    const dgi_cuda_operand operands[] = {
        {gemm->d.data, gemm->d.dtype, true, "d"},
        {gemm->a.data, gemm->a.dtype, !empty, "a"},
        {packed ? gemm->weights->data : gemm->b.data, DG_NONE, !empty, packed ? "weights" : "b"},
        {gemm->scale_a.data, gemm->scale_a.dtype, !empty, "scale_a"},
        {gemm->scale_b.data, gemm->scale_b.dtype, !empty, "scale_b"},
        {gemm->scale_d.data, gemm->scale_d.dtype, gemm->scale_d.dtype != DG_NONE, "scale_d"},
        {gemm->bias.data, gemm->bias.dtype, gemm->bias.dtype != DG_NONE, "bias"},
        {gemm->c.data, gemm->c.dtype, gemm->c.dtype != DG_NONE && gemm->beta != 0.0f, "c"},
    };
    return dgi_cuda_check_operands(cuda, operands, sizeof operands / sizeof operands[0]);
}

/* The kernel that a call takes, of one of two families. */
typedef struct choice {
    bool decode;
    dgi_decode_plan few; /* when `decode` */
    dgi_sm90_plan many;  /* else          */
} choice;

static dg_status choose(const dgi_cuda *cuda, const dg_gemm *gemm, choice *chosen)
{
    const bool invariant = cuda->batch_invariant;
    if (cuda->forced_many >= 0 || cuda->forced_few >= 0) {
        chosen->decode = cuda->forced_few >= 0;
        return chosen->decode
                   ? dgi_decode_plan_with(gemm, cuda->units, !invariant, cuda->forced_few,
                                          &chosen->few)
                   : dgi_sm90_plan_with(gemm, cuda->units, cuda->forced_many, &chosen->many);
    }
    chosen->decode = dgi_decode_choose(gemm, cuda->units, !invariant, &chosen->few);
    if (chosen->decode && gemm->d.rows <= DGI_ALWAYS_FEW)
        return DG_OK;
    dg_status status = dgi_sm90_choose(gemm, cuda->units, invariant, &chosen->many);
    if (!chosen->decode)
        return status;
    chosen->decode = status != DG_OK || dgi_decode_is_faster(&chosen->few, &chosen->many);
    return DG_OK;
}

static size_t scratch_bytes(const dg_gemm *gemm)
{
    return realigned_bytes(&gemm->a) + (gemm->weights == NULL ? realigned_bytes(&gemm->b) : 0);
}

/* With `scratch` for the copies of operands that need one. */
static dg_status run_with(dgi_cuda *cuda, const dg_gemm *gemm, const choice *chosen, char *scratch,
                          CUstream stream)
{
    dg_gemm aligned = *gemm;
    DGI_TRY(realign(cuda, &aligned.a, &scratch, stream));
    if (gemm->weights == NULL)
        DGI_TRY(realign(cuda, &aligned.b, &scratch, stream));
    aligned.b_is_constant = gemm->b_is_constant && aligned.b.data == gemm->b.data; /* no copy */
    if (chosen->decode)
        return dgi_cuda_decode(cuda, &aligned, &chosen->few, stream);
    const dgi_sm90_kernel *kernel = &dgi_sm90_kernels[chosen->many.kernel];
    CUfunction function;
    dgi_gemm_product product;
    DGI_TRY(dgi_cuda_kernel(cuda, chosen->many.kernel, stream, &function));
    DGI_TRY(fill_args(cuda, &aligned, &chosen->many, &product));
    return dgi_cuda_launch_tiles(cuda, kernel, function, chosen->many.ctas,
                                 dgi_cuda_shared_bytes(kernel), &product, stream);
}

dg_gemm dgi_cuda_with_weights(const dg_gemm *gemm)
{
    dg_gemm complete = *gemm;
    if (gemm->weights != NULL) {
        complete.b = gemm->weights->b;
        complete.scale_b = dgi_cuda_packed_scale(gemm->weights);
    }
    return complete;
}

dg_gemm dgi_cuda_with_rows(const dg_gemm *gemm, int64_t m)
{
    dg_gemm other = *gemm;
    other.a.rows = other.c.rows = other.d.rows = m;
    other.scale_a.rows = dg_scale_count(m, gemm->scale_a.block_rows, gemm->scale_a.row_phase);
    return other;
}

/* Scratch memory is the caller's, or else the context's. */
static dg_status run(dgi_cuda *cuda, const dg_gemm *gemm, CUstream stream)
{
    choice chosen;
    DGI_TRY(check_devices(cuda, gemm));
    DGI_TRY(dgi_cuda_check_scale(&gemm->scale_a, "scale_a"));
    DGI_TRY(dgi_cuda_check_scale(&gemm->scale_b, "scale_b"));
    DGI_TRY(dgi_cuda_check_scale(&gemm->scale_d, "scale_d"));
    DGI_TRY(choose(cuda, gemm, &chosen));
    const size_t bytes = scratch_bytes(gemm);
    if (bytes != 0 && gemm->workspace != NULL)
        DGI_TRY(dgi_cuda_check_pointer(cuda, gemm->workspace, "workspace"));
    if (bytes == 0 || gemm->workspace != NULL)
        return run_with(cuda, gemm, &chosen, gemm->workspace, stream);
    void *memory;
    DGI_TRY(dgi_cuda_scratch_take(cuda, bytes, stream, &memory));
    return dgi_cuda_scratch_give(cuda, memory, stream,
                                 run_with(cuda, gemm, &chosen, memory, stream));
}

dg_status dgi_cuda_gemm(dg_context *context, const dg_gemm *gemm, void *stream)
{
    dgi_cuda *cuda = context->state;
    const dg_gemm complete = dgi_cuda_with_weights(gemm);
    bool pushed;
    DGI_TRY(dgi_cuda_enter(cuda, &pushed));
    return dgi_cuda_leave(cuda, pushed, run(cuda, &complete, stream));
}

dg_status dgi_cuda_gemm_workspace(dg_context *context, const dg_gemm *gemm, size_t *bytes)
{
    choice chosen;
    const dg_gemm complete = dgi_cuda_with_weights(gemm);
    DGI_TRY(choose(context->state, &complete, &chosen));
    *bytes = scratch_bytes(&complete);
    return DG_OK;
}

/*
 * Loads what calls of this M or a smaller one may need: for few tokens each kernel that one of them
 * takes; for many all that can run, since the choice among them changes back and forth with M. What
 * a kernel asks of the scales' rows it asks of a single row no longer. Addresses may be others, so
 * operands may need a copy.
 */
static dg_status load_kernels(dgi_cuda *cuda, const dg_gemm *gemm)
{
    const int64_t m = gemm->d.rows;
    const dg_gemm one_row = dgi_cuda_with_rows(gemm, 1);
    bool many = m > DGI_MOST_FEW;
    CUfunction function;
    for (int64_t rows = 1; rows <= m && rows <= DGI_MOST_FEW; rows++) {
        const dg_gemm fewer = dgi_cuda_with_rows(gemm, rows);
        choice chosen;
        const bool found = choose(cuda, &fewer, &chosen) == DG_OK;
        if (found && chosen.decode)
            DGI_TRY(dgi_cuda_decode_kernel(cuda, chosen.few.kernel, NULL, &function));
        many = many || (found && !chosen.decode);
    }
    for (int32_t i = 0; many && i < dgi_sm90_kernel_count; i++) {
        const dgi_sm90_kernel *kernel = &dgi_sm90_kernels[i];
        if ((cuda->forced_many < 0 || cuda->forced_many == i) &&
            (dgi_sm90_can_run(kernel, gemm) || dgi_sm90_can_run(kernel, &one_row)))
            DGI_TRY(dgi_cuda_kernel(cuda, i, NULL, &function));
    }
    return dgi_cuda_small_kernel(cuda, DGI_SMALL_realign, NULL, &function);
}

dg_status dgi_cuda_gemm_prepare(dg_context *context, const dg_gemm *gemm)
{
    dgi_cuda *cuda = context->state;
    const dg_gemm complete = dgi_cuda_with_weights(gemm);
    choice chosen;
    DGI_TRY(choose(cuda, &complete, &chosen)); /* or say why there is no kernel */
    bool pushed;
    DGI_TRY(dgi_cuda_enter(cuda, &pushed));
    dg_status status = load_kernels(cuda, &complete);
    const size_t bytes = scratch_bytes(&complete);
    if (status == DG_OK && bytes > 0 && gemm->workspace == NULL)
        status = dgi_cuda_scratch_grow(cuda, bytes);
    return dgi_cuda_leave(cuda, pushed, status);
}

/* ---- explain ------------------------------------------------------------------------- */

dg_status dgi_cuda_gemm_explain(dg_context *context, const dg_gemm *gemm, FILE *text)
{
    dgi_cuda *cuda = context->state;
    const dg_gemm complete = dgi_cuda_with_weights(gemm);
    choice chosen;
    const bool found = choose(cuda, &complete, &chosen) == DG_OK;
    for (int32_t i = 0; i < dgi_decode_kernel_count; i++) {
        dgi_decode_plan plan;
        if (dgi_decode_plan_with(&complete, cuda->units, !cuda->batch_invariant, i, &plan) != DG_OK)
            fprintf(text, "refused %s\n", dg_last_error());
        else
            fprintf(text,
                    "%s %s: %.0f cycles predicted, %d CTAs share a tile's K, tokens in %d tiles\n",
                    found && chosen.decode && chosen.few.kernel == i ? "kernel" : "slower",
                    dgi_decode_kernels[i].name, plan.cycles, plan.split, plan.token_tiles);
    }
    for (int32_t i = 0; i < dgi_sm90_kernel_count; i++) {
        dgi_sm90_plan plan;
        if (dgi_sm90_plan_with(&complete, cuda->units, i, &plan) != DG_OK)
            fprintf(text, "refused %s\n", dg_last_error());
        else
            fprintf(text, "%s %s: %.0f cycles predicted\n",
                    found && !chosen.decode && chosen.many.kernel == i ? "kernel" : "slower",
                    dgi_sm90_kernels[i].name, plan.cycles);
    }
    return DG_OK;
}
