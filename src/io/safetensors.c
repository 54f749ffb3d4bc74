/* SPDX-License-Identifier: MIT */
/* Reading a safetensors header: see safetensors.h. Called by checkpoint.c and by the fuzz test. */
#include "io/safetensors.h"

#include "core/status.h"
#include "io/file.h"
#include "io/json.h"

#include <stdlib.h>
#include <string.h>

typedef long long ll; /* for printf */

/* The format's own limit; a longer header is a sign of a damaged length. */
#define HEADER_LIMIT 100000000u
#define RANK_LIMIT   64

/* ---- stored types -------------------------------------------------------------------- */

static const struct stored_type {
    const char *name;
    int32_t bits;
    dg_dtype dtype;
} stored_types[] = {
    {"F32", 32, DG_F32},     {"F16", 16, DG_F16},     {"BF16", 16, DG_BF16},
    {"F8_E4M3", 8, DG_E4M3}, {"F8_E5M2", 8, DG_E5M2}, {"F8_E8M0", 8, DG_UE8M0},
    {"F64", 64, DG_NONE},    {"I64", 64, DG_NONE},    {"U64", 64, DG_NONE},
    {"I32", 32, DG_NONE},    {"U32", 32, DG_NONE},    {"I16", 16, DG_NONE},
    {"U16", 16, DG_NONE},    {"I8", 8, DG_NONE},      {"U8", 8, DG_NONE},
    {"BOOL", 8, DG_NONE},    {"C64", 64, DG_NONE},    {"F6_E2M3", 6, DG_NONE},
    {"F6_E3M2", 6, DG_NONE}, {"F4", 4, DG_NONE},
};
#define STORED_TYPES (sizeof stored_types / sizeof stored_types[0])

int32_t dgi_stored_type(const char *name, dg_dtype *dtype)
{
    for (size_t i = 0; i < STORED_TYPES; i++)
        if (strcmp(stored_types[i].name, name) == 0) {
            *dtype = stored_types[i].dtype;
            return stored_types[i].bits;
        }
    *dtype = DG_NONE;
    return 0;
}

/* ---- one tensor ---------------------------------------------------------------------- */

dg_tensor *dgi_tensor_new(const char *name, const char *stored_type, int32_t rank)
{
    size_t shape_bytes = (size_t)rank * sizeof(int64_t);
    size_t name_bytes = strlen(name) + 1, type_bytes = strlen(stored_type) + 1;
    dg_tensor *tensor = calloc(1, sizeof *tensor + shape_bytes + name_bytes + type_bytes);
    if (tensor == NULL)
        return NULL;
    int64_t *shape = (int64_t *)(tensor + 1);
    char *text = (char *)(shape + rank);
    tensor->name = memcpy(text, name, name_bytes);
    tensor->stored_type = memcpy(text + name_bytes, stored_type, type_bytes);
    tensor->rank = rank;
    tensor->shape = shape;
    return tensor;
}

/* Reads the shape into `shape`, and the number of elements. */
static dg_status read_shape(const cJSON *sizes, const char *file, dg_tensor *tensor)
{
    int64_t *shape = (int64_t *)tensor->shape, elements = 1;
    bool overflow = false, empty = false;
    const cJSON *size;
    cJSON_ArrayForEach(size, sizes)
    {
        *shape = dgi_json_size(size);
        if (*shape < 0)
            return dgi_fail(DG_BAD_FILE,
                            "%s: tensor %s: a size in its shape is not an integer "
                            "from 0 to 2^53 - 1",
                            file, tensor->name);
        empty |= *shape == 0;
        overflow |= !empty && __builtin_mul_overflow(elements, *shape, &elements);
        shape++;
    }
    if (overflow && !empty)
        return dgi_fail(DG_BAD_FILE, "%s: tensor %s: its shape has more than 2^63 elements", file,
                        tensor->name);
    tensor->elements = empty ? 0 : elements;
    return DG_OK;
}

/* Reads the offsets into tensor->data and ->bytes, and checks them against type and shape. */
static dg_status read_offsets(const cJSON *offsets, const char *file, const char *data,
                              size_t data_bytes, dg_tensor *tensor)
{
    int64_t begin = dgi_json_size(cJSON_GetArrayItem(offsets, 0));
    int64_t end = dgi_json_size(cJSON_GetArrayItem(offsets, 1));
    if (cJSON_GetArraySize(offsets) != 2 || begin < 0 || end < begin)
        return dgi_fail(DG_BAD_FILE, "%s: tensor %s: data_offsets is not [begin, end]", file,
                        tensor->name);
    if ((uint64_t)end > data_bytes)
        return dgi_fail(DG_BAD_FILE,
                        "%s: tensor %s ends at byte %lld of the data, but the file holds %zu: it "
                        "is truncated or damaged",
                        file, tensor->name, (ll)end, data_bytes);
    int32_t bits = dgi_stored_type(tensor->stored_type, &tensor->dtype);
    int64_t need;
    if (bits != 0 && (__builtin_mul_overflow(tensor->elements, bits, &need) || need % 8 != 0 ||
                      need / 8 != end - begin))
        return dgi_fail(DG_BAD_FILE,
                        "%s: tensor %s: %lld elements of %s do not take up the %lld bytes of its "
                        "data_offsets",
                        file, tensor->name, (ll)tensor->elements, tensor->stored_type,
                        (ll)(end - begin));
    tensor->data = data + begin;
    tensor->bytes = (size_t)(end - begin);
    return DG_OK;
}

static dg_status read_tensor(const cJSON *entry, const char *file, const char *data,
                             size_t data_bytes, dg_tensor **made)
{
    const char *type = dgi_json_string(dgi_json_get(entry, "dtype"));
    const cJSON *shape = dgi_json_get(entry, "shape");
    const cJSON *offsets = dgi_json_get(entry, "data_offsets");
    if (type == NULL || !cJSON_IsArray(shape) || !cJSON_IsArray(offsets))
        return dgi_fail(DG_BAD_FILE, "%s: tensor %s lacks dtype, shape or data_offsets", file,
                        entry->string);
    int rank = cJSON_GetArraySize(shape);
    if (rank > RANK_LIMIT)
        return dgi_fail(DG_BAD_FILE, "%s: tensor %s has %d dimensions, at most %d expected", file,
                        entry->string, rank, RANK_LIMIT);
    dg_tensor *tensor = dgi_tensor_new(entry->string, type, rank);
    if (tensor == NULL)
        return dgi_no_memory(file);
    *made = tensor; /* the caller releases it, also after an error */
    tensor->file = file;
    DGI_TRY(read_shape(shape, file, tensor));
    return read_offsets(offsets, file, data, data_bytes, tensor);
}

/* ---- all tensors --------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(dg_tensor *const *)a)->name, (*(dg_tensor *const *)b)->name);
}

dg_status dgi_order_by_name(dg_tensor **tensors, size_t count, const char *where)
{
    qsort(tensors, count, sizeof *tensors, compare_names);
    for (size_t i = 1; i < count; i++)
        if (strcmp(tensors[i - 1]->name, tensors[i]->name) == 0)
            return dgi_fail(DG_BAD_FILE, "%s: tensor %s is there twice", where, tensors[i]->name);
    return DG_OK;
}

size_t dgi_index_by_name(dg_tensor *const *tensors, size_t count, const char *name)
{
    const dg_tensor wanted = {.name = name}, *key = &wanted;
    dg_tensor *const *found = bsearch(&key, tensors, count, sizeof *tensors, compare_names);
    return found == NULL ? count : (size_t)(found - tensors);
}

dg_tensor *dgi_find_by_name(dg_tensor *const *tensors, size_t count, const char *name)
{
    size_t index = dgi_index_by_name(tensors, count, name);
    return index == count ? NULL : tensors[index];
}

/* Empty tensors come before the one that begins where they do. */
static int compare_places(const void *a, const void *b)
{
    const dg_tensor *x = *(dg_tensor *const *)a, *y = *(dg_tensor *const *)b;
    int order = strcmp(x->file, y->file);
    if (order != 0)
        return order;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

void dgi_order_by_place(dg_tensor **tensors, size_t count)
{
    qsort(tensors, count, sizeof *tensors, compare_places);
}

static dg_status check_places(const dgi_safetensors *parsed, const char *file, const char *data,
                              size_t data_bytes)
{
    dgi_order_by_place(parsed->tensors, parsed->count);
    const char *expected = data;
    for (size_t i = 0; i < parsed->count; i++) {
        const dg_tensor *tensor = parsed->tensors[i];
        if (tensor->data != expected)
            return dgi_fail(DG_BAD_FILE, "%s: tensor %s begins at byte %lld of the data, %s", file,
                            tensor->name, (ll)((const char *)tensor->data - data),
                            (const char *)tensor->data < expected
                                ? "inside the tensor before it"
                                : "with a gap after the tensor before it");
        expected += tensor->bytes;
    }
    if (expected != data + data_bytes)
        return dgi_fail(DG_BAD_FILE, "%s: %lld bytes after the last tensor belong to none", file,
                        (ll)(data + data_bytes - expected));
    return DG_OK;
}

static dg_status read_tensors(const cJSON *header, const char *file, const char *data,
                              size_t data_bytes, dgi_safetensors *parsed)
{
    size_t members = (size_t)cJSON_GetArraySize(header);
    parsed->tensors = calloc(members + 1, sizeof *parsed->tensors);
    parsed->by_name = calloc(members + 1, sizeof *parsed->by_name);
    if (parsed->tensors == NULL || parsed->by_name == NULL)
        return dgi_no_memory(file);
    const cJSON *entry;
    cJSON_ArrayForEach(entry, header)
    {
        if (strcmp(entry->string, "__metadata__") == 0)
            continue;
        dg_tensor **tensor = &parsed->tensors[parsed->count];
        dg_status status = read_tensor(entry, file, data, data_bytes, tensor);
        parsed->count += *tensor != NULL;
        DGI_TRY(status);
    }
    const cJSON *metadata = dgi_json_get(header, "__metadata__");
    if (metadata != NULL && !cJSON_IsObject(metadata))
        return dgi_fail(DG_BAD_FILE, "%s: __metadata__ is not an object", file);
    if (metadata != NULL && (parsed->metadata = cJSON_PrintUnformatted(metadata)) == NULL)
        return dgi_no_memory(file);
    DGI_TRY(check_places(parsed, file, data, data_bytes));
    memcpy(parsed->by_name, parsed->tensors, parsed->count * sizeof *parsed->tensors);
    return dgi_order_by_name(parsed->by_name, parsed->count, file);
}

dg_status dgi_safetensors_parse(const void *data, size_t bytes, const char *file,
                                dgi_safetensors *parsed)
{
    *parsed = (dgi_safetensors){0};
    const unsigned char *start = data;
    uint64_t header_bytes = 0;
    if (bytes < sizeof header_bytes)
        return dgi_fail(DG_BAD_FILE, "%s has %zu bytes: too short for a safetensors file", file,
                        bytes);
    for (size_t i = 0; i < sizeof header_bytes; i++)
        header_bytes |= (uint64_t)start[i] << (8 * i);
    size_t rest = bytes - sizeof header_bytes;
    if (header_bytes > rest || header_bytes > HEADER_LIMIT)
        return dgi_fail(DG_BAD_FILE,
                        "%s: its header should have %llu bytes, but %zu follow (limit %u): it is "
                        "truncated or no safetensors file",
                        file, (unsigned long long)header_bytes, rest, HEADER_LIMIT);
    const char *text = (const char *)start + sizeof header_bytes;
    if (header_bytes == 0 || *text != '{')
        return dgi_fail(DG_BAD_FILE, "%s: its header does not begin with {", file);
    cJSON *header;
    DGI_TRY(dgi_json_parse(text, header_bytes, file, &header));
    dg_status status = read_tensors(header, file, text + header_bytes, rest - header_bytes, parsed);
    cJSON_Delete(header);
    if (status != DG_OK)
        dgi_safetensors_free(parsed);
    return status;
}

void dgi_safetensors_free(dgi_safetensors *parsed)
{
    for (size_t i = 0; i < parsed->count; i++)
        free(parsed->tensors[i]);
    free(parsed->tensors);
    free(parsed->by_name);
    cJSON_free(parsed->metadata);
    *parsed = (dgi_safetensors){0};
}
