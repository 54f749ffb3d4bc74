/* SPDX-License-Identifier: MIT */
/* The journal of a run: see journal.h. */
#include "quant/journal.h"

#include "core/status.h"
#include "io/publish.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- identity ------------------------------------------------------------------------ */

/* A file's size and time of its last change; what cannot be looked at is noted as not there. */
static void print_file(FILE *out, const char *folder, const char *name)
{
    struct stat facts;
    char *path = dgi_path_join(folder, name);
    if (path != NULL && stat(path, &facts) == 0)
        fprintf(out, "file %s %lld %lld.%09ld\n", path, (long long)facts.st_size,
                (long long)facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec);
    else
        fprintf(out, "no file %s\n", name);
    free(path);
}

static void print_files(FILE *out, const dg_checkpoint *checkpoint)
{
    for (size_t i = 0; i < checkpoint->shard_count; i++)
        print_file(out, checkpoint->folder, checkpoint->shards[i].name);
    print_file(out, checkpoint->folder, checkpoint->file);
}

char *dgi_journal_identity(const dg_checkpoint *input, const dg_checkpoint *scales,
                           const dg_checkpoint_options *options, bool convert)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return NULL;
    fprintf(out, "deepgemm %s\nconvert %d\nformat %s\nfusion %d\nunscaled_is_one %d\n",
            dg_version(), convert, dg_checkpoint_format_name(options->format), options->fusion,
            options->unscaled_is_one);
    for (int32_t i = 0; i < options->keep_count; i++)
        fprintf(out, "keep %s\n", options->keep[i]);
    print_files(out, input);
    print_file(out, input->folder, "config.json");
    if (scales != NULL)
        print_files(out, scales);
    fputs("--\n", out);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* ---- records ------------------------------------------------------------------------- */

#define RECORD "%zu %d %la %lld %lld %lld %la\n"

/*
 * Reads the lines behind the identity. Returns the bytes of those that are whole: a last line
 * without an end was being written when the run ended.
 */
static size_t read_records(dgi_journal *journal, const char *text, size_t bytes)
{
    const char *begin = text, *end = text + bytes, *line_end;
    for (; (line_end = memchr(text, '\n', (size_t)(end - text))) != NULL; text = line_end + 1) {
        char line[256];
        size_t length = (size_t)(line_end - text), item;
        int action;
        double error, part_ratio;
        long long saturated, underflow, non_finite;
        if (length >= sizeof line)
            break;
        memcpy(line, text, length);
        line[length] = '\0';
        if (sscanf(line, "%zu %d %la %lld %lld %lld %la", &item, &action, &error, &saturated,
                   &underflow, &non_finite, &part_ratio) != 7 ||
            item >= journal->items || action < DG_TENSOR_KEPT || action > DG_TENSOR_WIDENED)
            break;
        journal->done[item] = true;
        journal->results[item] = (dgi_result){
            (dg_tensor_action)action, error, {saturated, underflow, non_finite}, part_ratio};
    }
    return (size_t)(text - begin);
}

dg_status dgi_journal_open(const char *folder, const char *identity, size_t items,
                           dgi_journal *journal)
{
    *journal = (dgi_journal){.path = dgi_path_join(folder, DGI_JOURNAL),
                             .items = items,
                             .done = calloc(items + 1, sizeof *journal->done),
                             .pending = calloc(items + 1, sizeof *journal->pending),
                             .results = calloc(items + 1, sizeof *journal->results)};
    if (journal->path == NULL || journal->done == NULL || journal->pending == NULL ||
        journal->results == NULL)
        return dgi_no_memory(DGI_JOURNAL);
    dgi_map map;
    DGI_TRY(dgi_file_map(journal->path, &map));
    size_t begin = strlen(identity);
    size_t good = begin;
    if (map.bytes > begin)
        good += read_records(journal, (const char *)map.data + begin, map.bytes - begin);
    dgi_file_unmap(&map);
    if (truncate(journal->path, (off_t)good) != 0)
        return dgi_io_error("write", journal->path);
    journal->file = fopen(journal->path, "ae");
    return journal->file == NULL ? dgi_io_error("open", journal->path) : DG_OK;
}

void dgi_journal_add(dgi_journal *journal, size_t item, const dgi_result *result)
{
    journal->results[item] = *result;
    journal->pending[journal->pending_count++] = item;
}

dg_status dgi_journal_sync(dgi_journal *journal)
{
    for (size_t i = 0; i < journal->pending_count; i++) {
        const dgi_result *r = &journal->results[journal->pending[i]];
        fprintf(journal->file, RECORD, journal->pending[i], (int)r->action, r->relative_error,
                (long long)r->counts.saturated, (long long)r->counts.underflow,
                (long long)r->counts.non_finite, r->part_ratio);
    }
    journal->pending_count = 0;
    return fflush(journal->file) == 0 && fdatasync(fileno(journal->file)) == 0
               ? DG_OK
               : dgi_io_error("write", journal->path);
}

void dgi_journal_close(dgi_journal *journal)
{
    if (journal->file != NULL)
        fclose(journal->file);
    free(journal->path);
    free(journal->done);
    free(journal->pending);
    free(journal->results);
    *journal = (dgi_journal){0};
}
