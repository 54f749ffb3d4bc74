/* SPDX-License-Identifier: MIT */
/* The public face of the number formats: names, sizes and host conversion. */
#include "core/formats.h"
#include "core/status.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [DG_NONE] = {"none", 0},   [DG_F32] = {"f32", 4},   [DG_F16] = {"f16", 2},
    [DG_BF16] = {"bf16", 2},   [DG_E4M3] = {"e4m3", 1}, [DG_E5M2] = {"e5m2", 1},
    [DG_UE8M0] = {"ue8m0", 1},
};

static bool is_dtype(dg_dtype dtype)
{
    return (size_t)dtype < sizeof dtypes / sizeof dtypes[0];
}

size_t dg_dtype_bytes(dg_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].bytes : 0;
}

const char *dg_dtype_name(dg_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].name : "unknown";
}

/* Whether UE8M0 holds `value` exactly. */
static bool is_ue8m0(float value)
{
    uint32_t bits = dgi_f32_to_bits(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return true;
    return bits == 0x00400000u || (bits != 0 && (bits & 0x807FFFFFu) == 0 && bits < 0x7F800000u);
}

dg_status dg_convert(const void *source, dg_dtype source_dtype, void *target, dg_dtype target_dtype,
                     int64_t count, dg_overflow overflow)
{
    size_t source_bytes = dg_dtype_bytes(source_dtype), target_bytes = dg_dtype_bytes(target_dtype);
    if (source_bytes == 0)
        return dgi_fail(DG_UNSUPPORTED_TYPE, "source_dtype is %d, not a data type", source_dtype);
    if (target_bytes == 0)
        return dgi_fail(DG_UNSUPPORTED_TYPE, "target_dtype is %d, not a data type", target_dtype);
    if (overflow != DG_SATURATE && overflow != DG_OVERFLOW_IEEE)
        return dgi_fail(DG_INVALID_ARGUMENT, "overflow is %d, not a dg_overflow", overflow);
    if (count < 0 || count > INT64_MAX / 4)
        return dgi_fail(DG_INVALID_ARGUMENT, "count is %lld: it must be 0 to 2^61",
                        (long long)count);
    if (count == 0)
        return DG_OK;
    if (source == NULL || target == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL, but count is %lld",
                        source == NULL ? "source" : "target", (long long)count);
    uintptr_t s = (uintptr_t)source, t = (uintptr_t)target;
    if (s < t + (uintptr_t)count * target_bytes && t < s + (uintptr_t)count * source_bytes)
        return dgi_fail(DG_INVALID_ARGUMENT, "source and target overlap");

    if (target_dtype == DG_UE8M0)
        for (int64_t i = 0; i < count; i++) {
            float value = dgi_load_f32(source, source_dtype, i);
            if (!is_ue8m0(value))
                return dgi_fail(DG_UNSUPPORTED_SCALE,
                                "source[%lld] is %g: UE8M0 holds only powers of two from 2^-127 "
                                "to 2^127; requantise to change a scale",
                                (long long)i, (double)value);
        }
    if (source_dtype == target_dtype) { /* a copy keeps NaN payloads */
        memcpy(target, source, (size_t)count * source_bytes);
        return DG_OK;
    }
    for (int64_t i = 0; i < count; i++)
        dgi_store_f32(target, target_dtype, i, dgi_load_f32(source, source_dtype, i), overflow);
    return DG_OK;
}
