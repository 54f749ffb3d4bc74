/* SPDX-License-Identifier: MIT */
/*
 * The safetensors header: what is accepted, and every way in which a damaged or hostile file is
 * refused. Each file ends at a page that cannot be read.
 */
#include "files.h"
#include "guard.h"
#include "io/safetensors.h"
#include "random.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parses the bytes with a guard page behind them. */
static dg_status parse(const void *file, size_t bytes, dgi_safetensors *parsed, guard *memory)
{
    *memory = guard_new(bytes, GUARD_AFTER, 0);
    memcpy(memory->data, file, bytes);
    return dgi_safetensors_parse(memory->data, bytes, "file", parsed);
}

static void refuse(const void *file, size_t bytes, const char *text)
{
    dgi_safetensors parsed;
    guard memory;
    assert_refused(parse(file, bytes, &parsed, &memory), DG_BAD_FILE, text);
    assert_null(parsed.tensors);
    guard_free(&memory);
}

/* A header of one tensor "t", 8 bytes of data unless said otherwise. */
#define ONE(fields) "{\"t\":{" fields "}}"
#define GOOD        "\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]"

static void a_good_file(void **state)
{
    (void)state;
    /* Names out of order, an empty tensor, a scalar, metadata, spaces behind; odd header length. */
    const char *header = "{\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[6,10]},"
                         "\"__metadata__\":{\"format\":\"pt\"},"
                         "\"e\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[6,6]},"
                         "\"a\":{\"dtype\":\"BF16\",\"shape\":[1,3],\"data_offsets\":[0,6]}}  ";
    const char data[] = "abcdefghij";
    size_t bytes;
    char *file = safetensors_bytes(header, data, 10, &bytes);
    dgi_safetensors parsed;
    guard memory;
    assert_ok(parse(file, bytes, &parsed, &memory));
    assert_int_equal(parsed.count, 3);
    assert_string_equal(parsed.metadata, "{\"format\":\"pt\"}");
    const dg_tensor *a = parsed.tensors[0], *e = parsed.tensors[1], *b = parsed.tensors[2];
    assert_string_equal(a->name, "a");
    assert_string_equal(a->stored_type, "BF16");
    assert_int_equal(a->dtype, DG_BF16);
    assert_int_equal(a->rank, 2);
    assert_int_equal(a->shape[0], 1);
    assert_int_equal(a->shape[1], 3);
    assert_int_equal(a->elements, 3);
    assert_int_equal(a->bytes, 6);
    assert_memory_equal(a->data, "abcdef", 6);
    assert_string_equal(e->name, "e");
    assert_int_equal(e->elements, 0);
    assert_int_equal(e->dtype, DG_NONE);
    assert_string_equal(b->name, "b");
    assert_int_equal(b->rank, 0);
    assert_int_equal(b->elements, 1);
    assert_memory_equal(b->data, "ghij", 4);
    assert_ptr_equal(dgi_find_by_name(parsed.by_name, parsed.count, "b"), b);
    assert_null(dgi_find_by_name(parsed.by_name, parsed.count, "c"));
    dgi_safetensors_free(&parsed);
    guard_free(&memory);
    free(file);
}

static void accepted(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
    } cases[] = {
        {"{}", 0},
        {ONE(GOOD), 8},
        {"{\"__metadata__\":{}}", 0},
        {ONE(GOOD ",\"unknown\":[1,{}]"), 8},
        /* A type that nobody knows: its size is not checked, its place is. */
        {ONE("\"dtype\":\"F9\",\"shape\":[5],\"data_offsets\":[0,8]"), 8},
        /* Two elements of four bits each. */
        {ONE("\"dtype\":\"F4\",\"shape\":[4,4],\"data_offsets\":[0,8]"), 8},
        /* Sizes that would overflow were it not for the zero. */
        {ONE("\"dtype\":\"F32\",\"shape\":[4503599627370496,4503599627370496,0],"
             "\"data_offsets\":[0,0]"),
         0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes;
        char data[8] = {0};
        char *file = safetensors_bytes(cases[i].header, data, cases[i].data_bytes, &bytes);
        dgi_safetensors parsed;
        guard memory;
        assert_ok(parse(file, bytes, &parsed, &memory));
        dgi_safetensors_free(&parsed);
        guard_free(&memory);
        free(file);
    }
}

static void refused(void **state)
{
    (void)state;
    static const struct {
        const char *header, *message;
    } cases[] = {
        {"", "does not begin with {"},
        {" {}", "does not begin with {"},
        {"[]", "does not begin with {"},
        {"{", "is not JSON"},
        {"{} {}", "is not one JSON object"},
        {"{\"t\":{" GOOD "}", "is not JSON"},
        {"{\"t\":1}", "lacks dtype, shape or data_offsets"},
        {ONE("\"shape\":[2,2],\"data_offsets\":[0,8]"), "lacks dtype"},
        {ONE("\"dtype\":3,\"shape\":[2,2],\"data_offsets\":[0,8]"), "lacks dtype"},
        {ONE("\"dtype\":\"BF16\",\"shape\":4,\"data_offsets\":[0,8]"), "lacks dtype, shape"},
        {ONE("\"DTYPE\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]"), "lacks dtype"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0]"), "[begin, end]"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[]"), "[begin, end]"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,4,8]"), "[begin, end]"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[8,0]"), "[begin, end]"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[-8,0]"), "[begin, end]"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,16]"), "is truncated"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,9007199254740991]"),
         "is truncated"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,6]"), "do not take up"},
        {ONE("\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,8]"), "do not take up"},
        {ONE("\"dtype\":\"F4\",\"shape\":[17],\"data_offsets\":[0,8]"), "do not take up"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[-2,-2],\"data_offsets\":[0,8]"), "not an integer"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[2.5,2],\"data_offsets\":[0,8]"), "not an integer"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[\"2\",2],\"data_offsets\":[0,8]"), "not an integer"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[9007199254740993],\"data_offsets\":[0,8]"),
         "not an integer"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[1e400],\"data_offsets\":[0,8]"), "not an integer"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[4503599627370496,4503599627370496],"
             "\"data_offsets\":[0,8]"),
         "more than 2^63"},
        {ONE("\"dtype\":\"C64\",\"shape\":[4503599627370496,1024],\"data_offsets\":[0,8]"),
         "do not take up"},
        {"{\"t\":{" GOOD "},\"t\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[8,8]}}",
         "tensor t is there twice"},
        {"{\"t\":{" GOOD "},\"u\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         "inside the tensor before it"},
        {ONE("\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[4,8]"), "with a gap"},
        {ONE("\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]"), "belong to none"},
        {"{}", "belong to none"},
        {"{\"__metadata__\":[],\"t\":{" GOOD "}}", "__metadata__ is not an object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes;
        char data[8] = {0};
        char *file = safetensors_bytes(cases[i].header, data, sizeof data, &bytes);
        refuse(file, bytes, cases[i].message);
        free(file);
    }
}

static void wrong_header_lengths(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {
        3, 100, 100000001, INT32_MAX, UINT32_MAX, (uint64_t)1 << 62, UINT64_MAX - 7, UINT64_MAX};
    char file[10] = "        {}";
    refuse("", 0, "too short");
    refuse(file, 7, "too short");
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (int b = 0; b < 8; b++)
            file[b] = (char)(lengths[i] >> (8 * b));
        refuse(file, sizeof file, "truncated or no safetensors file");
    }
}

static void too_deep_and_too_many_dimensions(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    char *header = malloc(2 * DEPTH + 64);
    size_t bytes, length = (size_t)sprintf(header, "{\"t\":");
    memset(header + length, '[', DEPTH);
    strcpy(header + length + DEPTH, "}");
    char *file = safetensors_bytes(header, NULL, 0, &bytes);
    refuse(file, bytes, "is not JSON");
    memcpy(file + 8, "{\"a\0b\"", 6);
    refuse(file, bytes, "holds a zero byte");
    free(file);
    /* Written as an escape it would end the name: another tensor than the file's. */
    file = safetensors_bytes("{\"a\\u0000b\":{\"dtype\":\"I8\",\"shape\":[1],"
                             "\"data_offsets\":[0,1]}}",
                             "x", 1, &bytes);
    refuse(file, bytes, "holds a zero byte");
    free(file);
    static const char *const not_utf8[] = {
        "\xff",             /* in no UTF-8 */
        "\x80",             /* a continuation of nothing */
        "\xc3",             /* cut off */
        "\xc0\xaf",         /* '/' in two bytes, */
        "\xe0\x80\xaf",     /* in three, */
        "\xf0\x80\x80\xaf", /* in four */
        "\xed\xa0\x80",     /* half a pair */
        "\xf4\x90\x80\x80", /* beyond the last character */
    };
    for (size_t i = 0; i < sizeof not_utf8 / sizeof *not_utf8; i++) {
        char named[128];
        sprintf(named, "{\"%s\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                not_utf8[i]);
        file = safetensors_bytes(named, "x", 1, &bytes);
        refuse(file, bytes, "is not UTF-8 at byte 2");
        free(file);
    }

    length = (size_t)sprintf(header, "{\"t\":{\"dtype\":\"I8\",\"shape\":[1");
    for (int i = 0; i < DEPTH / 2; i++)
        length += (size_t)sprintf(header + length, ",1");
    sprintf(header + length, "],\"data_offsets\":[0,1]}}");
    file = safetensors_bytes(header, "x", 1, &bytes);
    refuse(file, bytes, "dimensions");
    free(file);
    free(header);
}

/* A file cut off anywhere is refused; one with a byte changed anywhere does no harm. */
static void cut_and_changed(void **state)
{
    (void)state;
    const char *header =
        "{\"first\":{\"dtype\":\"F8_E4M3\",\"shape\":[3,5],\"data_offsets\":[0,15]},"
        "\"second\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[15,23]}}";
    char data[23] = {0};
    size_t bytes;
    char *file = safetensors_bytes(header, data, sizeof data, &bytes);
    for (size_t cut = 0; cut < bytes; cut++)
        refuse(file, cut, "");
    rng r = rng_new(1);
    for (int i = 0; i < 20000; i++) {
        size_t at = (size_t)rng_range(&r, 0, (int64_t)bytes - 1);
        char kept = file[at];
        file[at] = (char)rng_next(&r);
        dgi_safetensors parsed;
        guard memory;
        if (parse(file, bytes, &parsed, &memory) == DG_OK) {
            int64_t sum = 0;
            for (size_t t = 0; t < parsed.count; t++)
                for (size_t b = 0; b < parsed.tensors[t]->bytes; b++)
                    sum += ((const char *)parsed.tensors[t]->data)[b];
            assert_int_equal(sum, at >= bytes - sizeof data ? file[at] : 0);
            dgi_safetensors_free(&parsed);
        }
        guard_free(&memory);
        file[at] = kept;
    }
    free(file);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_file),
        cmocka_unit_test(accepted),
        cmocka_unit_test(refused),
        cmocka_unit_test(wrong_header_lengths),
        cmocka_unit_test(too_deep_and_too_many_dimensions),
        cmocka_unit_test(cut_and_changed),
    };
    return test_run(argc, argv, tests);
}
