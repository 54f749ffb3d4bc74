/* SPDX-License-Identifier: MIT */
/*
 * The FP8 matrix product, with the sums of the hardware bit for bit as docs/numerics.md has them:
 * products and the sum so far are cut to 13 bits behind the largest exponent among them, added
 * exactly, and the result is cut to 13 bits behind its leading one.
 */
#include "inside.h"

#include <math.h>
#include <string.h>

enum { K = 32, KEPT_BITS = 13, ROW_BYTES = 128, NONE = -400 };

/* ---- codes ----------------------------------------------------------------------------- */

/* A row of K codes. A zero has a very small exponent, a subnormal that of the smallest normal. */
typedef struct operand {
    float value[K];
    int16_t exponent[K];
    bool finite;
} operand;

static struct {
    float value[256];
    int16_t exponent[256];
} codes[2];

static void make_codes(void)
{
    for (int type = 0; type < 2; type++)
        for (int i = 0; i < 256; i++) {
            const int bits = type == SIM_E4M3 ? 3 : 2, bias = type == SIM_E4M3 ? 7 : 15;
            const int stored = (i & 0x7F) >> bits, low = i & ((1 << bits) - 1);
            const int mantissa = stored == 0 ? low : low + (1 << bits);
            const int exponent = (stored == 0 ? 1 : stored) - bias;
            float value = ldexpf((float)mantissa, exponent - bits);
            if (type == SIM_E4M3 ? (i & 0x7F) == 0x7F : stored == 31)
                value = type == SIM_E5M2 && low == 0 ? INFINITY : NAN;
            codes[type].value[i] = i & 0x80 ? -value : value;
            codes[type].exponent[i] = (int16_t)(mantissa == 0 ? NONE : exponent);
        }
}

/* ---- sums ------------------------------------------------------------------------------ */

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* 2^exponent, and the exponent of a value: of normal numbers, which all are here. */
static float power_of_two(int exponent)
{
    return float_of((uint32_t)(exponent + 127) << 23);
}

static int exponent_of(float value)
{
    return (int)(bits_of(value) >> 23 & 0xFF) - 127;
}

static float special_sum(float sum, const operand *a, const operand *b)
{
    for (int i = 0; i < K; i++)
        sum += a->value[i] * b->value[i];
    return isnan(sum) ? NAN : sum;
}

/* Products are exact in FP32, and converting to an integer cuts towards zero. */
static float sum_of(float sum, const operand *a, const operand *b)
{
    if (!a->finite || !b->finite || !isfinite(sum))
        return special_sum(sum, a, b);
    int16_t most = NONE;
    for (int i = 0; i < K; i++) {
        const int16_t exponent = (int16_t)(a->exponent[i] + b->exponent[i]);
        most = exponent > most ? exponent : most;
    }
    int largest = most;
    if (sum != 0.0f && exponent_of(sum) > largest)
        largest = exponent_of(sum);
    if (largest == NONE)
        return 0.0f;
    const float scale = power_of_two(KEPT_BITS - largest);
    int32_t total = (int32_t)(sum * scale);
    for (int i = 0; i < K; i++)
        total += (int32_t)(a->value[i] * b->value[i] * scale);
    const uint32_t cut = (1u << (23 - KEPT_BITS)) - 1;
    return float_of(bits_of((float)total) & ~cut) * power_of_two(largest - KEPT_BITS);
}

/* ---- instructions ---------------------------------------------------------------------- */

/* Row `row` of an operand that begins at the descriptor's address, in the 128-byte swizzle. */
static void load(operand *to, uint64_t descriptor, uint32_t row, sim_fp8 type)
{
    const uint64_t flags = (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
    if ((descriptor & ~(uint64_t)0x3FFF) != flags)
        sim_fail("a wgmma descriptor of %llx", (unsigned long long)descriptor);
    const uint32_t first = (uint32_t)(descriptor & 0x3FFF) * 16 + row * ROW_BYTES;
    to->finite = true;
    for (uint32_t chunk = 0; chunk < K; chunk += 16) {
        const uint32_t at = first + chunk;
        const uint8_t *bytes = sim_shared_memory(at ^ (at / ROW_BYTES % 8 * 16), 16);
        for (uint32_t i = 0; i < 16; i++) {
            to->value[chunk + i] = codes[type].value[bytes[i]];
            to->exponent[chunk + i] = codes[type].exponent[bytes[i]];
            to->finite &= (bool)isfinite(to->value[chunk + i]);
        }
    }
}

static void finish(const sim_product *p)
{
    const uint32_t thread = sim_here->thread.x % 128;
    operand a[2], b;
    for (uint32_t i = 0; i < 2; i++)
        load(&a[i], p->a, thread / 32 * 16 + thread % 32 / 4 + 8 * i, (sim_fp8)p->a_type);
    for (uint32_t pair = 0; pair < p->n / 4; pair++) {
        const uint32_t col = pair / 2 * 8 + thread % 4 * 2 + pair % 2;
        load(&b, p->b, col, (sim_fp8)p->b_type);
        for (uint32_t i = 0; i < 2; i++) {
            float *d = &p->d[col / 8 * 4 + i * 2 + col % 2];
            *d = sum_of(p->accumulate ? *d : 0.0f, &a[i], &b);
        }
    }
}

void sim_wgmma(float *d, uint32_t n, uint64_t a, uint64_t b, sim_fp8 a_type, sim_fp8 b_type,
               bool accumulate)
{
    sim_thread *self = sim_self();
    if (codes[SIM_E5M2].exponent[1] == 0)
        make_codes();
    if (self->product_count == SIM_MOST_PRODUCTS)
        sim_fail("%d wgmmas of a thread under way", SIM_MOST_PRODUCTS);
    self->products[self->product_count++] =
        (sim_product){d, a, b, n, self->group, (uint8_t)a_type, (uint8_t)b_type, accumulate};
}

static void finish_products(sim_thread *thread, uint32_t groups_left)
{
    uint32_t done = 0;
    while (done < thread->product_count &&
           thread->products[done].group + groups_left < thread->group)
        finish(&thread->products[done++]);
    thread->product_count -= done;
    memmove(thread->products, thread->products + done,
            thread->product_count * sizeof *thread->products);
}

void sim_wgmma_commit(void)
{
    sim_thread *self = sim_self();
    self->group++;
    if (sim_now_or_later())
        finish_products(self, 0);
}

/* A warp's lanes wait together: none goes on before all have their sums. */
void sim_wgmma_wait(uint32_t pending)
{
    sim_dawdle();
    finish_products(sim_self(), pending);
    sim_sync_warp();
}
