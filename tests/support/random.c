/* SPDX-License-Identifier: MIT */
/* Random test data: SplitMix64 (Steele, Lea and Flood, 2014) and what the tests draw from it. */
#include "random.h"

#include "core/formats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t program_seed(void)
{
    static uint64_t seed;
    if (seed == 0) {
        const char *given = getenv("DEEPGEMM_SEED");
        seed = given != NULL ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
        printf("DEEPGEMM_SEED=%llu\n", (unsigned long long)seed);
    }
    return seed;
}

rng rng_new(uint64_t stream)
{
    rng r = {program_seed() ^ stream * 0xD1342543DE82EF95u};
    return r;
}

uint64_t rng_next(rng *r)
{
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

int64_t rng_range(rng *r, int64_t lowest, int64_t highest)
{
    return lowest + (int64_t)(rng_next(r) % (uint64_t)(highest - lowest + 1));
}

double rng_unit(rng *r)
{
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

bool rng_chance(rng *r, double probability)
{
    return rng_unit(r) < probability;
}

double rng_normal(rng *r)
{
    /* Box and Muller, 1958. */
    return sqrt(-2.0 * log(1.0 - rng_unit(r))) * cos(6.283185307179586 * rng_unit(r));
}

void rng_fill_normal(rng *r, void *data, dg_dtype dtype, int64_t count, double deviation)
{
    for (int64_t i = 0; i < count; i++)
        dgi_store_f32(data, dtype, i, (float)(deviation * rng_normal(r)), DG_SATURATE);
}

void rng_fill_codes(rng *r, void *data, dg_dtype dtype, int64_t count)
{
    uint8_t *codes = data;
    for (int64_t i = 0; i < count; i++)
        do
            codes[i] = (uint8_t)rng_next(r);
        while (!dgi_f32_is_finite(dgi_f32_from_fp8(dtype, codes[i])));
}

void rng_fill_small_codes(rng *r, void *data, int64_t count)
{
    uint8_t *codes = data;
    uint64_t draw = 0;
    for (int64_t i = 0; i < count; i++) {
        draw = i % 8 == 0 ? rng_next(r) : draw >> 8;
        codes[i] = draw & 0xBF; /* without the upper bit of the exponent */
    }
}

void rng_fill_scales(rng *r, void *data, dg_dtype dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double exponent = 6.0 * rng_unit(r) - 3.0;
        float scale = (float)exp2(dtype == DG_UE8M0 ? rint(exponent) : exponent);
        dgi_store_f32(data, dtype, i, scale, DG_SATURATE);
    }
}
