/* SPDX-License-Identifier: MIT */
/* Opening checkpoints, reading tensors, and finding the scales of a weight. */
#include "core/formats.h"
#include "files.h"
#include "random.h"
#include "test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void refuse(const char *path, dg_status status, const char *text)
{
    dg_checkpoint *checkpoint = NULL;
    assert_refused(dg_checkpoint_open(&checkpoint, path), status, text);
    assert_null(checkpoint);
}

/* ---- files, indexes, folders --------------------------------------------------------- */

/* Two shards and their index: a and b in the first, c in the second. */
static const char *make_shards(void)
{
    const char *folder = files_folder();
    static const float values[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    const stored first[] = {{"b", "F32", 4, 2, 1, values + 1}, {"a", "F32", 4, 1, 0, values}};
    const stored second[] = {{"c", "F32", 4, 1, 0, values + 3}};
    safetensors_write(files_path(folder, "one.safetensors"), first, 2);
    safetensors_write(files_path(folder, "two.safetensors"), second, 1);
    files_write_text(files_path(folder, "model.safetensors.index.json"),
                     "{\"weight_map\":{\"c\":\"two.safetensors\",\"a\":\"one.safetensors\","
                     "\"b\":\"one.safetensors\"}}");
    return folder;
}

static void expect_names(const dg_checkpoint *checkpoint, const char *names)
{
    char found[256] = "";
    dg_tensor tensor;
    int64_t count = 0;
    while (dg_checkpoint_tensor_at(checkpoint, count, &tensor) == DG_OK) {
        strcat(found, tensor.name);
        strcat(found, " ");
        count++;
    }
    assert_string_equal(found, names);
    assert_refused(dg_checkpoint_tensor_at(checkpoint, count, &tensor), DG_NOT_FOUND, "tensors");
    assert_refused(dg_checkpoint_tensor_at(checkpoint, -1, &tensor), DG_NOT_FOUND, "index is -1");
}

static void every_way_to_name_a_checkpoint(void **state)
{
    (void)state;
    const char *folder = make_shards();
    const char *sharded[] = {folder, files_path(folder, "model.safetensors.index.json")};
    for (int i = 0; i < 2; i++) {
        dg_checkpoint *checkpoint = open_checkpoint(sharded[i]);
        expect_names(checkpoint, "b a c ");
        dg_tensor c;
        assert_ok(dg_checkpoint_find(checkpoint, "c", &c));
        assert_string_equal(c.file, "two.safetensors");
        assert_refused(dg_checkpoint_find(checkpoint, "d", &c), DG_NOT_FOUND, "no tensor d");
        dg_checkpoint_close(checkpoint);
    }
    dg_checkpoint *single = open_checkpoint(files_path(folder, "one.safetensors"));
    expect_names(single, "b a ");
    dg_checkpoint_close(single);

    /* A folder without an index: model.safetensors, or the only file. */
    files_remove(files_path(folder, "model.safetensors.index.json"));
    refuse(folder, DG_INVALID_ARGUMENT, "holds 2 files named *.safetensors");
    files_remove(files_path(folder, "two.safetensors"));
    single = open_checkpoint(folder);
    expect_names(single, "b a ");
    dg_checkpoint_close(single);
    const stored z = {"z", "I8", 1, 1, 0, "z"};
    safetensors_write(files_path(folder, "model.safetensors"), &z, 1);
    single = open_checkpoint(folder);
    expect_names(single, "z ");
    dg_checkpoint_close(single);
    dg_checkpoint_close(NULL);
}

static void what_cannot_be_opened(void **state)
{
    (void)state;
    const char *folder = files_folder(), *file = files_path(folder, "x.safetensors");
    dg_checkpoint *checkpoint = NULL;
    assert_refused(dg_checkpoint_open(NULL, file), DG_INVALID_ARGUMENT, "checkpoint is NULL");
    assert_refused(dg_checkpoint_open(&checkpoint, NULL), DG_INVALID_ARGUMENT, "path is NULL");
    refuse(file, DG_NOT_FOUND, "x.safetensors");
    refuse(folder, DG_NOT_FOUND, "holds no .safetensors file");
    files_write_text(file, "");
    refuse(file, DG_BAD_FILE, "has 0 bytes");
    refuse("/dev/zero", DG_BAD_FILE, "not a regular file");
}

/* G43: an incomplete download is an error that lists every name that is missing. */
static void g43_incomplete_checkpoints(void **state)
{
    (void)state;
    const char *folder = make_shards(), *index = files_path(folder, "model.safetensors.index.json");
    files_write_text(index,
                     "{\"weight_map\":{\"a\":\"one.safetensors\",\"p\":\"three.safetensors\","
                     "\"q\":\"four.safetensors\",\"r\":\"three.safetensors\"}}");
    refuse(folder, DG_NOT_FOUND,
           "names 2 files that are not there: four.safetensors, three.safetensors");
    files_write_text(index, "{\"weight_map\":{\"a\":\"one.safetensors\",\"x\":\"one.safetensors\","
                            "\"b\":\"two.safetensors\"}}");
    refuse(folder, DG_NOT_FOUND, "names 2 tensors that their files lack: x, b");

    /* All the shards of a large model at once. */
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    fprintf(out, "{\"weight_map\":{\"t\":\"one.safetensors\"");
    for (int i = 1; i <= 163; i++)
        fprintf(out, ",\"t%d\":\"model-%05d-of-00163.safetensors\"", i, i);
    fprintf(out, "}}");
    fclose(out);
    files_write_text(index, text);
    free(text);
    refuse(folder, DG_NOT_FOUND, "model-00163-of-00163.safetensors");
    assert_non_null(strstr(dg_last_error(), "model-00001-of-00163.safetensors"));
}

static void damaged_indexes(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "is empty"},
        {"[]", "is not one JSON object"},
        {"{}", "has no object weight_map"},
        {"{\"weight_map\":[]}", "has no object weight_map"},
        {"{\"weight_map\":{\"a\":1}}", "file of tensor a is not a plain file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"../one.safetensors\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"a\":\"one.safetensors\"}}",
         "is there twice"},
        {"{\"weight_map\":{\"a\":\"model.safetensors.index.json\"}}", "safetensors"},
    };
    const char *folder = make_shards(), *index = files_path(folder, "model.safetensors.index.json");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        files_write_text(index, cases[i].text);
        refuse(folder, DG_BAD_FILE, cases[i].message);
    }
    files_write_text(index, "{\"weight_map\":{\"a\":\"one.safetensors\"}}");
    files_write_text(files_path(folder, "config.json"), "{\"quantization_config\":");
    refuse(folder, DG_BAD_FILE, "config.json is not JSON");
    files_write_text(files_path(folder, "config.json"),
                     "{\"quantization_config\":{\"weight_block_size\":[128]}}");
    refuse(folder, DG_BAD_FILE, "block size is not [rows, columns]");
}

/* ---- reading ------------------------------------------------------------------------- */

/* G44: tensors at odd addresses, the FP8 types, and an unknown type that nobody asks for. */
static void g44_types_and_alignment(void **state)
{
    (void)state;
    const char *file = files_path(files_folder(), "x.safetensors");
    const float values[3] = {0.1f, -2.5f, 70000.0f};
    const uint8_t codes[3] = {0x7E, 0x80, 0x38}, exponents[2] = {127, 130};
    const stored tensors[] = {
        {"byte", "U8", 1, 1, 0, "x"},
        {"f32", "F32", 4, 3, 0, values},
        {"e4m3", "F8_E4M3", 1, 3, 0, codes},
        {"e5m2", "F8_E5M2", 1, 3, 0, codes},
        {"e8m0", "F8_E8M0", 1, 2, 0, exponents},
        {"strange", "F8_E4M3FNUZ", 1, 3, 0, codes},
    };
    safetensors_write(file, tensors, 6);
    dg_checkpoint *checkpoint = open_checkpoint(file);

    float f32[3];
    assert_ok(dg_checkpoint_read(checkpoint, "f32", DG_NONE, f32, sizeof f32));
    assert_memory_equal(f32, values, sizeof values);
    uint16_t half[3];
    assert_ok(dg_checkpoint_read(checkpoint, "f32", DG_F16, half, sizeof half));
    assert_int_equal(half[0], dgi_f16_from_f32(values[0]));
    assert_int_equal(half[2], 0x7C00);
    assert_ok(dg_checkpoint_read(checkpoint, "e4m3", DG_F32, f32, sizeof f32));
    assert_true(f32[0] == 448.0f && f32[1] == 0.0f && f32[2] == 1.0f);
    assert_ok(dg_checkpoint_read(checkpoint, "e5m2", DG_F32, f32, sizeof f32));
    assert_true(f32[2] == 0.5f);
    assert_ok(dg_checkpoint_read(checkpoint, "e8m0", DG_F32, f32, sizeof f32));
    assert_true(f32[0] == 1.0f && f32[1] == 8.0f);

    dg_tensor strange;
    assert_ok(dg_checkpoint_find(checkpoint, "strange", &strange));
    assert_int_equal(strange.dtype, DG_NONE);
    assert_string_equal(strange.stored_type, "F8_E4M3FNUZ");
    f32[0] = 7.0f;
    assert_refused(dg_checkpoint_read(checkpoint, "strange", DG_F32, f32, sizeof f32),
                   DG_UNSUPPORTED_TYPE, "tensor strange is stored as F8_E4M3FNUZ");
    assert_refused(dg_checkpoint_read(checkpoint, "f32", DG_NONE, f32, 11), DG_INVALID_ARGUMENT,
                   "needs 12");
    assert_refused(dg_checkpoint_read(checkpoint, "f32", DG_NONE, NULL, 12), DG_INVALID_ARGUMENT,
                   "needs 12");
    assert_refused(dg_checkpoint_read(checkpoint, "f32", (dg_dtype)99, f32, 12),
                   DG_UNSUPPORTED_TYPE, "unknown");
    assert_refused(dg_checkpoint_read(checkpoint, "none", DG_NONE, f32, 12), DG_NOT_FOUND, "none");
    assert_true(f32[0] == 7.0f);
    dg_checkpoint_close(checkpoint);
}

/* ---- weights and their scales -------------------------------------------------------- */

/* A folder with a weight "w.weight" of 300 x 200 and a scale. */
static const char *make_weight(const char *config, const char *type, const char *scale_name,
                               const char *scale_type, size_t scale_bytes, int64_t scale_rows,
                               int64_t scale_cols)
{
    static const uint8_t data[300 * 200 * 4];
    const char *folder = files_folder();
    const stored tensors[] = {
        {"w.weight", type, strcmp(type, "F32") == 0 ? 4 : 1, 300, 200, data},
        {scale_name, scale_type, scale_bytes, scale_rows, scale_cols, data},
    };
    safetensors_write(files_path(folder, "model.safetensors"), tensors, scale_name == NULL ? 1 : 2);
    if (config != NULL)
        files_write_text(files_path(folder, "config.json"), config);
    return folder;
}

/* G42: every name and shape of a scale in use; it is a multiplier whatever its name says. */
static void g42_names_and_shapes_of_scales(void **state)
{
    (void)state;
    const char *block64 = "{\"quantization_config\":{\"weight_block_size\":[64,100]}}";
    const char *per_tensor = "{\"quantization_config\":{\"weight_block_size\":null}}";
    const char *compressed =
        "{\"quantization_config\":{\"config_groups\":{\"group_0\":{\"weights\":"
        "{\"block_structure\":[100,50]}}}}}";
    const struct {
        const char *config, *name, *type;
        size_t bytes;
        int64_t rows, cols;
        int32_t block_rows, block_cols;
    } cases[] = {
        {NULL, "w.weight_scale_inv", "F32", 4, 3, 2, 128, 128},
        {block64, "w.weight_scale_inv", "F32", 4, 5, 2, 64, 100},
        {compressed, "w.weight_scale", "BF16", 2, 3, 4, 100, 50},
        {per_tensor, "w.weight_scale_inv", "F32", 4, 1, 1, 0, 0},
        {NULL, "w.weight_scale", "BF16", 2, 1, 0, 0, 0},
        {NULL, "w.weight_scale", "F32", 4, 300, 1, 1, 0},
        {NULL, "w.weight_scale", "F32", 4, 300, 0, 1, 0},
        {NULL, "w.weight_scale", "U8", 1, 300, 7, 1, 32},
        {NULL, "w.scale", "F8_E8M0", 1, 3, 2, 128, 128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *folder = make_weight(cases[i].config, "F8_E4M3", cases[i].name, cases[i].type,
                                         cases[i].bytes, cases[i].rows, cases[i].cols);
        dg_checkpoint *checkpoint = open_checkpoint(folder);
        dg_stored_weight w;
        assert_ok(dg_checkpoint_weight(checkpoint, "w.weight", false, &w));
        assert_string_equal(w.weight.name, "w.weight");
        assert_string_equal(w.scale.name, cases[i].name);
        assert_int_equal(w.block_rows, cases[i].block_rows);
        assert_int_equal(w.block_cols, cases[i].block_cols);
        dg_scale scale =
            dg_scale_of(NULL, DG_F32, 300, 200, cases[i].block_rows, cases[i].block_cols);
        assert_int_equal(w.scale.elements, scale.rows * scale.cols);
        assert_int_equal(dg_dtype_bytes(w.scale.dtype), cases[i].bytes);
        dg_checkpoint_close(checkpoint);
    }
}

static void scales_that_do_not_fit(void **state)
{
    (void)state;
    const struct {
        const char *type, *name, *scale_type;
        size_t bytes;
        int64_t rows, cols;
        dg_status status;
        const char *message;
    } cases[] = {
        {"F8_E4M3", "w.weight_scale_inv", "F32", 4, 2, 2, DG_BAD_FILE, "[3, 2] expected"},
        {"F8_E4M3", "w.weight_scale_inv", "F32", 4, 2, 3, DG_BAD_FILE, "[3, 2] expected"},
        {"F8_E4M3", "w.weight_scale", "F32", 4, 200, 1, DG_BAD_FILE, "[300] or"},
        {"F8_E4M3", "w.weight_scale", "F32", 4, 1, 200, DG_BAD_FILE, "[300] or"},
        {"F8_E4M3", "w.weight_scale", "F32", 4, 0, 0, DG_BAD_FILE, "0 elements"},
        {"F8_E4M3", "w.weight_scale", "I8", 1, 300, 1, DG_UNSUPPORTED_TYPE, "stored as I8"},
        {"F8_E4M3", "w.weight_scale", "F8_E4M3", 1, 300, 1, DG_UNSUPPORTED_TYPE, "F8_E4M3"},
        {"I8", "w.weight_scale", "F32", 4, 300, 1, DG_UNSUPPORTED_TYPE, "weight w.weight"},
        {"F8_E8M0", "w.weight_scale", "F32", 4, 300, 1, DG_UNSUPPORTED_TYPE, "weight w.weight"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *folder = make_weight(NULL, cases[i].type, cases[i].name, cases[i].scale_type,
                                         cases[i].bytes, cases[i].rows, cases[i].cols);
        dg_checkpoint *checkpoint = open_checkpoint(folder);
        dg_stored_weight w = {.block_rows = -1};
        assert_refused(dg_checkpoint_weight(checkpoint, "w.weight", false, &w), cases[i].status,
                       cases[i].message);
        assert_int_equal(w.block_rows, -1);
        assert_refused(dg_checkpoint_weight(checkpoint, "v.weight", false, &w), DG_NOT_FOUND,
                       "v.weight");
        dg_checkpoint_close(checkpoint);
    }
    const uint8_t bytes[4] = {0};
    const stored both[] = {{"w.weight", "F8_E4M3", 1, 1, 1, bytes},
                           {"w.weight_scale", "F32", 4, 1, 0, bytes},
                           {"w.weight_scale_inv", "F32", 4, 1, 0, bytes},
                           {"v.weight", "F8_E4M3", 1, 1, 0, bytes}};
    const char *file = files_path(files_folder(), "x.safetensors");
    safetensors_write(file, both, 4);
    dg_checkpoint *checkpoint = open_checkpoint(file);
    dg_stored_weight w;
    assert_refused(dg_checkpoint_weight(checkpoint, "w.weight", false, &w), DG_BAD_FILE,
                   "two scales");
    assert_refused(dg_checkpoint_weight(checkpoint, "v.weight", false, &w), DG_UNSUPPORTED_SHAPE,
                   "rank 1");
    dg_checkpoint_close(checkpoint);
}

/* G47: an FP8 weight without scale, an FP8 head with one, a head tied to the embedding. */
static void g47_heads_and_missing_scales(void **state)
{
    (void)state;
    dg_checkpoint *checkpoint = open_checkpoint(make_weight(NULL, "F8_E4M3", NULL, "", 0, 0, 0));
    dg_stored_weight w;
    assert_refused(dg_checkpoint_weight(checkpoint, "w.weight", false, &w), DG_BAD_FILE,
                   "weight w.weight is stored as F8_E4M3 without a scale");
    assert_ok(dg_checkpoint_weight(checkpoint, "w.weight", true, &w));
    assert_null(w.scale.name);
    assert_refused(dg_checkpoint_weight(checkpoint, "lm_head.weight", true, &w), DG_NOT_FOUND,
                   "lm_head.weight");
    dg_checkpoint_close(checkpoint);

    checkpoint = open_checkpoint(make_weight(NULL, "F32", NULL, "", 0, 0, 0));
    assert_ok(dg_checkpoint_weight(checkpoint, "w.weight", false, &w));
    assert_null(w.scale.name);
    dg_checkpoint_close(checkpoint);

    const float data[2] = {0};
    const stored head[] = {{"model.embed_tokens.weight", "BF16", 2, 2, 1, data},
                           {"lm_head.weight", "F8_E4M3", 1, 2, 1, data},
                           {"lm_head.weight_scale", "F32", 4, 2, 1, data}};
    const char *file = files_path(files_folder(), "x.safetensors");
    safetensors_write(file, head, 3);
    checkpoint = open_checkpoint(file);
    assert_ok(dg_checkpoint_weight(checkpoint, "lm_head.weight", false, &w));
    assert_string_equal(w.weight.name, "lm_head.weight");
    assert_string_equal(w.scale.name, "lm_head.weight_scale");
    dg_checkpoint_close(checkpoint);

    safetensors_write(file, head, 1);
    checkpoint = open_checkpoint(file);
    assert_ok(dg_checkpoint_weight(checkpoint, "lm_head.weight", false, &w));
    assert_string_equal(w.weight.name, "model.embed_tokens.weight");
    dg_checkpoint_close(checkpoint);
}

/* G43: a weight and its scale in different shards. */
static void g43_scale_in_another_shard(void **state)
{
    (void)state;
    const char *folder = files_folder();
    const float data[1] = {0};
    const stored weight = {"w.weight", "F8_E4M3", 1, 2, 2, data};
    const stored scale = {"w.weight_scale_inv", "F32", 4, 1, 1, data};
    safetensors_write(files_path(folder, "one.safetensors"), &weight, 1);
    safetensors_write(files_path(folder, "two.safetensors"), &scale, 1);
    files_write_text(files_path(folder, "model.safetensors.index.json"),
                     "{\"weight_map\":{\"w.weight\":\"one.safetensors\","
                     "\"w.weight_scale_inv\":\"two.safetensors\"}}");
    dg_checkpoint *checkpoint = open_checkpoint(folder);
    dg_stored_weight w;
    assert_ok(dg_checkpoint_weight(checkpoint, "w.weight", false, &w));
    assert_string_equal(w.weight.file, "one.safetensors");
    assert_string_equal(w.scale.file, "two.safetensors");
    dg_checkpoint_close(checkpoint);
}

/* ---- threads ------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 200 };

typedef struct reader {
    const dg_checkpoint *shared;
    const char *path;
    int errors;
} reader;

/* Reads from the checkpoint that all share and from one of its own, and fails now and then. */
static void *read_often(void *argument)
{
    reader *r = argument;
    for (int i = 0; i < ROUNDS; i++) {
        float c = 0.0f;
        dg_checkpoint *own = NULL;
        dg_tensor tensor;
        r->errors += dg_checkpoint_read(r->shared, "c", DG_F32, &c, sizeof c) != DG_OK || c != 4.0f;
        r->errors += dg_checkpoint_find(r->shared, "none", &tensor) != DG_NOT_FOUND ||
                     strstr(dg_last_error(), "none") == NULL;
        r->errors += dg_checkpoint_open(&own, r->path) != DG_OK ||
                     dg_checkpoint_find(own, "a", &tensor) != DG_OK;
        dg_checkpoint_close(own);
    }
    return NULL;
}

static void many_threads_read(void **state)
{
    (void)state;
    const char *path = make_shards();
    dg_checkpoint *checkpoint = open_checkpoint(path);
    pthread_t threads[THREADS];
    reader readers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        readers[i] = (reader){checkpoint, path, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, read_often, &readers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(readers[i].errors, 0);
    }
    dg_checkpoint_close(checkpoint);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_to_name_a_checkpoint),
        cmocka_unit_test(what_cannot_be_opened),
        cmocka_unit_test(g43_incomplete_checkpoints),
        cmocka_unit_test(damaged_indexes),
        cmocka_unit_test(g44_types_and_alignment),
        cmocka_unit_test(g42_names_and_shapes_of_scales),
        cmocka_unit_test(scales_that_do_not_fit),
        cmocka_unit_test(g47_heads_and_missing_scales),
        cmocka_unit_test(g43_scale_in_another_shard),
        cmocka_unit_test(many_threads_read),
    };
    return test_run(argc, argv, tests);
}
