/* SPDX-License-Identifier: MIT */
/* The Llama forward pass: see llama.h. */
#include "llama.h"

#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const llama_kind_names[LLAMA_BLOCK_KINDS] = {
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
};

char *llama_layer_name(int block, llama_kind kind)
{
    if (kind == LLAMA_HEAD)
        return cli_format("lm_head");
    return cli_format("model.layers.%d.%s.%s", block, kind < LLAMA_GATE ? "self_attn" : "mlp",
                      llama_kind_names[kind]);
}

/*
 * Few rows are not worth waking threads for: they would still be spinning, each on a core of its
 * own, when the next product's library wakes its own.
 */
enum { many_rows = 512 };

/* target = source / rms(source) * weight, row by row. */
static void rms_norm(const llama *model, const float *source, const float *weight, int64_t rows,
                     float *target)
{
    int64_t n = model->hidden;
#pragma omp parallel for if (rows >= many_rows)
    for (int64_t row = 0; row < rows; row++) {
        const float *x = source + row * n;
        double squares = 0.0;
        for (int64_t i = 0; i < n; i++)
            squares += (double)x[i] * x[i];
        double inverse = 1.0 / sqrt(squares / (double)n + model->norm_epsilon);
        for (int64_t i = 0; i < n; i++)
            target[row * n + i] = (float)(x[i] * inverse * weight[i]);
    }
}

/* The rotation of each position's features: cosine and sine, [tokens, head_dim / 2] of each. */
typedef struct rotation {
    float *cosine, *sine;
} rotation;

static rotation rotation_new(const llama *model, int64_t tokens)
{
    int64_t half = model->head_dim / 2;
    rotation r = {cli_alloc((size_t)(tokens * half) * sizeof(float)),
                  cli_alloc((size_t)(tokens * half) * sizeof(float))};
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)t * pow(model->rope_theta, -(double)i / (double)half);
            r.cosine[t * half + i] = (float)cos(angle);
            r.sine[t * half + i] = (float)sin(angle);
        }
    return r;
}

/* Rotates feature i of each head with feature i + head_dim / 2, by the token's position. */
static void rotate(const llama *model, const rotation *by, float *x, int64_t rows, int64_t tokens,
                   int64_t heads)
{
    int64_t half = model->head_dim / 2;
#pragma omp parallel for if (rows >= many_rows)
    for (int64_t row = 0; row < rows; row++) {
        const float *c = by->cosine + row % tokens * half, *s = by->sine + row % tokens * half;
        for (int64_t head = 0; head < heads; head++) {
            float *a = x + (row * heads + head) * model->head_dim, *b = a + half;
            for (int64_t i = 0; i < half; i++) {
                float rotated = a[i] * c[i] - b[i] * s[i];
                b[i] = b[i] * c[i] + a[i] * s[i];
                a[i] = rotated;
            }
        }
    }
}

static float dot(const float *x, const float *y, int64_t n)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* weight[0..count) = softmax(weight) */
static void softmax(float *weight, int64_t count)
{
    float top = weight[0], sum = 0.0f;
    for (int64_t i = 1; i < count; i++)
        top = fmaxf(top, weight[i]);
    for (int64_t i = 0; i < count; i++)
        sum += weight[i] = expf(weight[i] - top);
    for (int64_t i = 0; i < count; i++)
        weight[i] /= sum;
}

/* One query head of one sequence. `q`, `k`, `v` and `out` point at the head's first features. */
static void attend_head(const llama *model, const float *q, const float *k, const float *v,
                        int64_t tokens, float *out)
{
    int64_t d = model->head_dim, q_row = model->heads * d, kv_row = model->kv_heads * d;
    float scale = 1.0f / sqrtf((float)d);
    float *weight = cli_alloc((size_t)tokens * sizeof *weight);
    for (int64_t t = 0; t < tokens; t++) {
        float *target = out + t * q_row;
        for (int64_t s = 0; s <= t; s++)
            weight[s] = scale * dot(q + t * q_row, k + s * kv_row, d);
        softmax(weight, t + 1);
        memset(target, 0, (size_t)d * sizeof *target);
        for (int64_t s = 0; s <= t; s++)
            for (int64_t i = 0; i < d; i++)
                target[i] += weight[s] * v[s * kv_row + i];
    }
    free(weight);
}

/* Causal attention; `out` has the shape of `q`. Several query heads share a key-value head. */
static void attend(const llama *model, const float *q, const float *k, const float *v,
                   int64_t sequences, int64_t tokens, float *out)
{
    int64_t d = model->head_dim, q_size = tokens * model->heads * d;
    int64_t kv_size = tokens * model->kv_heads * d;
#pragma omp parallel for collapse(2) if (sequences * tokens >= many_rows)
    for (int64_t s = 0; s < sequences; s++)
        for (int64_t head = 0; head < model->heads; head++) {
            int64_t from = s * q_size + head * d;
            int64_t shared = s * kv_size + head * model->kv_heads / model->heads * d;
            attend_head(model, q + from, k + shared, v + shared, tokens, out + from);
        }
}

static void add(float *x, const float *y, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        x[i] += y[i];
}

/* gate = silu(gate) * up */
static void gated_silu(float *gate, const float *up, int64_t rows, int64_t features)
{
#pragma omp parallel for if (rows >= many_rows)
    for (int64_t i = 0; i < rows * features; i++)
        gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

static float *new_floats(int64_t rows, int64_t cols)
{
    return cli_alloc((size_t)(rows * cols) * sizeof(float));
}

void llama_forward(const llama *model, const int32_t *ids, int64_t sequences, int64_t tokens,
                   llama_product *product, void *user, float *logits)
{
    int64_t rows = sequences * tokens;
    int64_t hidden = model->hidden, inner = model->intermediate;
    int64_t q_size = model->heads * model->head_dim, kv_size = model->kv_heads * model->head_dim;
    float *x = new_floats(rows, hidden), *normed = new_floats(rows, hidden);
    float *change = new_floats(rows, hidden), *attended = new_floats(rows, q_size);
    float *q = new_floats(rows, q_size), *k = new_floats(rows, kv_size);
    float *v = new_floats(rows, kv_size);
    float *gate = new_floats(rows, inner), *up = new_floats(rows, inner);

    const dg_matrix norm_m = dg_matrix_of(normed, DG_F32, rows, hidden);
    const dg_matrix change_m = dg_matrix_of(change, DG_F32, rows, hidden);
    const dg_matrix attended_m = dg_matrix_of(attended, DG_F32, rows, q_size);
    const dg_matrix q_m = dg_matrix_of(q, DG_F32, rows, q_size);
    const dg_matrix k_m = dg_matrix_of(k, DG_F32, rows, kv_size);
    const dg_matrix v_m = dg_matrix_of(v, DG_F32, rows, kv_size);
    const dg_matrix gate_m = dg_matrix_of(gate, DG_F32, rows, inner);
    const dg_matrix up_m = dg_matrix_of(up, DG_F32, rows, inner);
    const dg_matrix logits_m = dg_matrix_of(logits, DG_F32, rows, model->vocabulary);

    const rotation by = rotation_new(model, tokens);
    size_t row_bytes = (size_t)hidden * dg_dtype_bytes(model->embedding.dtype);
    for (int64_t t = 0; t < rows; t++)
        cli_check(dg_convert((char *)model->embedding.data + (size_t)ids[t] * row_bytes,
                             model->embedding.dtype, x + t * hidden, DG_F32, hidden, DG_SATURATE),
                  "reading the embedding");

    for (int b = 0; b < model->block_count; b++) {
        rms_norm(model, x, model->blocks[b].attention_norm, rows, normed);
        product(user, b, LLAMA_Q, &norm_m, &q_m);
        product(user, b, LLAMA_K, &norm_m, &k_m);
        product(user, b, LLAMA_V, &norm_m, &v_m);
        rotate(model, &by, q, rows, tokens, model->heads);
        rotate(model, &by, k, rows, tokens, model->kv_heads);
        attend(model, q, k, v, sequences, tokens, attended);
        product(user, b, LLAMA_O, &attended_m, &change_m);
        add(x, change, rows * hidden);

        rms_norm(model, x, model->blocks[b].mlp_norm, rows, normed);
        product(user, b, LLAMA_GATE, &norm_m, &gate_m);
        product(user, b, LLAMA_UP, &norm_m, &up_m);
        gated_silu(gate, up, rows, inner);
        product(user, b, LLAMA_DOWN, &gate_m, &change_m);
        add(x, change, rows * hidden);
    }
    if (logits != NULL) {
        rms_norm(model, x, model->final_norm, rows, normed);
        product(user, model->block_count, LLAMA_HEAD, &norm_m, &logits_m);
    }

    float *buffers[] = {x, normed, change, attended, q, k, v, gate, up, by.cosine, by.sine};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
}
