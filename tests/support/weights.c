/* SPDX-License-Identifier: MIT */
/* What an FP8 weight in a checkpoint means: see weights.h. */
#include "weights.h"

#include "core/formats.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *array(int64_t count, size_t element)
{
    void *data = malloc((size_t)count * element + 1);
    assert_non_null(data);
    return data;
}

values values_read(const dg_checkpoint *checkpoint, const char *name, int64_t expert)
{
    dg_stored_weight w;
    if (expert < 0)
        assert_ok(dg_checkpoint_weight(checkpoint, name, false, &w));
    else
        assert_ok(dg_checkpoint_expert(checkpoint, name, expert, false, &w));
    values v = {w.weight.shape[0], w.weight.shape[1], NULL, NULL, NULL};
    int64_t count = v.rows * v.cols;
    bool fp8 = dgi_is_fp8(w.weight.dtype);
    v.value = array(count, sizeof *v.value);
    v.scale = array(count, sizeof *v.scale);
    if (fp8) {
        v.code = array(count, 1);
        memcpy(v.code, w.weight.data, (size_t)count);
    }
    int64_t scale_cols = dg_scale_count(v.cols, w.block_cols, 0);
    for (int64_t r = 0; r < v.rows; r++)
        for (int64_t c = 0; c < v.cols; c++) {
            int64_t i = r * v.cols + c;
            int64_t place = (w.block_rows == 0 ? 0 : r / w.block_rows) * scale_cols +
                            (w.block_cols == 0 ? 0 : c / w.block_cols);
            v.scale[i] =
                w.scale.name == NULL ? 1.0 : dgi_load_f32(w.scale.data, w.scale.dtype, place);
            v.value[i] = v.scale[i] * dgi_load_f32(w.weight.data, w.weight.dtype, i);
        }
    return v;
}

void values_free(values *v)
{
    free(v->value);
    free(v->scale);
    free(v->code);
}

static void expect_same_shape(const values *w, const values *v)
{
    assert_int_equal(w->rows, v->rows);
    assert_int_equal(w->cols, v->cols);
}

double values_distance(const values *w, const values *v)
{
    double error = 0.0, norm = 0.0;
    expect_same_shape(w, v);
    for (int64_t i = 0; i < w->rows * w->cols; i++) {
        if (!isfinite(w->value[i]) || !isfinite(v->value[i]))
            continue;
        error += (w->value[i] - v->value[i]) * (w->value[i] - v->value[i]);
        norm += w->value[i] * w->value[i];
    }
    return norm > 0.0 ? sqrt(error / norm) : 0.0;
}

/* |w - code * scale| is at most half a step of E4M3 at that place, give or take FP32's rounding. */
void values_expect_nearest(const values *w, const values *v)
{
    expect_same_shape(w, v);
    for (int64_t i = 0; i < w->rows * w->cols; i++) {
        int exponent;
        double x = w->value[i] / v->scale[i];
        frexp(x, &exponent);
        double step = ldexp(1.0, (exponent - 1 < -6 ? -6 : exponent - 1) - 3);
        if (!(fabs(x - v->value[i] / v->scale[i]) <= 0.5 * step * (1 + 1e-5)))
            fail_msg("value %lld: %g became %g with the scale %g", (long long)i, w->value[i],
                     v->value[i], v->scale[i]);
    }
}

void values_expect_equal(const values *w, const values *v)
{
    expect_same_shape(w, v);
    assert_true((w->code == NULL) == (v->code == NULL));
    for (int64_t i = 0; i < w->rows * w->cols; i++)
        if (w->value[i] != v->value[i] && !(isnan(w->value[i]) && isnan(v->value[i])))
            fail_msg("value %lld: %g became %g", (long long)i, w->value[i], v->value[i]);
    if (w->code != NULL)
        assert_memory_equal(w->code, v->code, (size_t)(w->rows * w->cols));
}
