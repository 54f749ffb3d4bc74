/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target: any bytes as a file of statistics. What loads gives a positive finite scale for
 * every layer by every method, and is the same after it was saved and loaded again.
 */
#include "deepgemm.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* In memory: a file on a disk that is written anew each time waits for the disk. */
static char path[] = "/dev/shm/deepgemm-fuzz-statistics-XXXXXX";

static void remove_file(void)
{
    remove(path);
}

static void require(bool holds)
{
    if (!holds)
        abort();
}

static float scale_of(const dg_statistics *s, const dg_observed *o, dg_scale_method method)
{
    float value = -1.0f;
    dg_scale_choice choice = DG_SCALE_CHOICE_INIT;
    dg_scale_quality quality = DG_SCALE_QUALITY_INIT;
    choice.method = method;
    dg_scale scale = dg_scale_of(&value, DG_F32, 1, o->features, 0, 0);
    require(dg_statistics_choose(s, o->layer, &choice, &scale, &quality) == DG_OK);
    require(value > 0.0f && value <= FLT_MAX);
    return value;
}

static void go_through(const dg_statistics *s)
{
    dg_statistics *again = NULL;
    dg_observed o = DG_OBSERVED_INIT, p = DG_OBSERVED_INIT;
    require(dg_statistics_save(s, path) == DG_OK);
    require(dg_statistics_load(&again, path) == DG_OK);
    for (int64_t i = 0; dg_statistics_layer_at(s, i, &o) == DG_OK; i++) {
        require(dg_statistics_layer_at(again, i, &p) == DG_OK);
        require(strcmp(o.layer, p.layer) == 0 && o.tokens == p.tokens && o.amax == p.amax);
        for (int method = DG_METHOD_AMAX; method <= DG_METHOD_KL; method++)
            require(scale_of(s, &o, (dg_scale_method)method) ==
                    scale_of(again, &p, (dg_scale_method)method));
    }
    dg_statistics_destroy(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready;
    if (!ready) {
        int file = mkstemp(path);
        if (file < 0) {
            perror(path);
            exit(1);
        }
        atexit(remove_file);
        ready = true;
    }
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
    dg_statistics *s = NULL;
    if (dg_statistics_load(&s, path) != DG_OK) {
        require(s == NULL && *dg_last_error() != '\0');
        return 0;
    }
    go_through(s);
    dg_statistics_destroy(s);
    return 0;
}
