/* SPDX-License-Identifier: MIT */
/*
 * Runs a fuzz target where there is no libFuzzer: draws a seed file, changes it a little, hands it
 * over in memory of exactly its size, and so on until the time is up. It takes libFuzzer's
 * arguments: [-max_total_time=SECONDS] [-seed=N] FOLDER_OR_FILE... On a crash the input is in
 * the file "crash-input".
 */
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SEED_LIMIT = 256, INPUT_LIMIT = 1 << 16 };

static struct seed {
    uint8_t *data;
    size_t bytes;
} seeds[SEED_LIMIT];
static int seed_count;

/* ---- seeds --------------------------------------------------------------------------- */

static void die(const char *path)
{
    perror(path);
    exit(2);
}

static void load_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        die(path);
    struct seed *seed = &seeds[seed_count++];
    seed->data = malloc(INPUT_LIMIT);
    if (seed->data == NULL)
        die(path);
    seed->bytes = fread(seed->data, 1, INPUT_LIMIT, file);
    fclose(file);
}

static void load(const char *path)
{
    struct stat facts;
    if (stat(path, &facts) != 0)
        die(path);
    if (!S_ISDIR(facts.st_mode)) {
        load_file(path);
        return;
    }
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && seed_count < SEED_LIMIT)
            load_file(name);
        free(entries[i]);
    }
    free(entries);
}

/* ---- mutation ------------------------------------------------------------------------ */

static uint64_t state;

/* xorshift64 (Marsaglia, 2003) */
static uint64_t draw(uint64_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % limit;
}

/* Replaces `removed` bytes at `at` by others. */
static size_t splice(uint8_t *data, size_t bytes, size_t at, size_t removed, const void *inserted,
                     size_t inserted_bytes)
{
    if (removed > bytes - at)
        removed = bytes - at;
    if (bytes - removed + inserted_bytes > INPUT_LIMIT)
        return bytes;
    memmove(data + at + inserted_bytes, data + at + removed, bytes - at - removed);
    memcpy(data + at, inserted, inserted_bytes);
    return bytes - removed + inserted_bytes;
}

static size_t mutate(uint8_t *data, size_t bytes)
{
    static const char *const words[] = {"0",
                                        "-1",
                                        "1e30",
                                        "9007199254740993",
                                        "18446744073709551615",
                                        "\"",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        ",",
                                        "\\",
                                        "null",
                                        "true",
                                        "\\u0",
                                        "\x80",
                                        " ",
                                        "0.5",
                                        "[[[[[[[[",
                                        "\"\":0,"};
    const struct seed *other = &seeds[draw((uint64_t)seed_count)];
    const char *word = words[draw(sizeof words / sizeof *words)];
    size_t at = (size_t)draw(bytes + 1), length = (size_t)draw(16), from;
    switch (draw(7)) {
    case 0: /* a bit */
        if (at < bytes)
            data[at] ^= (uint8_t)(1 << draw(8));
        return bytes;
    case 1: /* a byte */
        if (at < bytes)
            data[at] = (uint8_t)draw(256);
        return bytes;
    case 2: /* cut off */
        return at;
    case 3: /* taken out */
        return splice(data, bytes, at, length, "", 0);
    case 4: /* a word put in or over */
        return splice(data, bytes, at, draw(2) ? strlen(word) : 0, word, strlen(word));
    case 5: /* the length at the beginning, which decides what the rest is */
        if (bytes >= 8)
            data[draw(8)] = draw(4) ? (uint8_t)draw(256) : 0;
        return bytes;
    default: /* a piece of another seed */
        from = (size_t)draw(other->bytes + 1);
        if (length > other->bytes - from)
            length = other->bytes - from;
        return splice(data, bytes, at, draw(2) ? length : 0, other->data + from, length);
    }
}

/* ---- running ------------------------------------------------------------------------- */

static const uint8_t *current;
static size_t current_bytes;

/* Keeps the input for the person who looks into it. Sanitizers end with abort(). */
static void save_input(int signal_number)
{
    FILE *file = fopen("crash-input", "wb");
    if (file != NULL) {
        fwrite(current, 1, current_bytes, file);
        fclose(file);
        fputs("the input is in crash-input\n", stderr);
    }
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* Tells the sanitizers to abort, so that the input is saved. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "abort_on_error=1";
}
const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void)
{
    return "abort_on_error=1:print_stacktrace=1";
}

static void run(const uint8_t *data, size_t bytes)
{
    uint8_t *exact = malloc(bytes > 0 ? bytes : 1);
    if (exact == NULL)
        die("malloc");
    memcpy(exact, data, bytes);
    current = exact;
    current_bytes = bytes;
    LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
}

int main(int argc, char **argv)
{
    double seconds = 0.0;
    state = (uint64_t)time(NULL);
    for (int i = 1; i < argc; i++)
        if (sscanf(argv[i], "-max_total_time=%lf", &seconds) != 1 &&
            sscanf(argv[i], "-seed=%lu", &state) != 1)
            load(argv[i]);
    if (seed_count == 0) {
        fprintf(stderr, "usage: %s [-max_total_time=SECONDS] [-seed=N] FOLDER_OR_FILE...\n",
                argv[0]);
        return 2;
    }
    printf("-seed=%lu, %d seeds\n", state, seed_count);
    state |= 1; /* zero would stay zero */
    fflush(stdout);
    signal(SIGABRT, save_input);
    signal(SIGSEGV, save_input);
    for (int i = 0; i < seed_count; i++)
        run(seeds[i].data, seeds[i].bytes);
    static uint8_t data[INPUT_LIMIT];
    uint64_t runs = 0;
    time_t end = time(NULL) + (time_t)seconds;
    while (runs % 256 != 0 || time(NULL) < end) {
        const struct seed *seed = &seeds[draw((uint64_t)seed_count)];
        size_t bytes = seed->bytes;
        memcpy(data, seed->data, bytes);
        for (uint64_t changes = 1 + draw(4); changes > 0; changes--)
            bytes = mutate(data, bytes);
        run(data, bytes);
        runs++;
    }
    printf("%llu runs\n", (unsigned long long)runs);
    return 0;
}
