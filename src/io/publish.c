/* SPDX-License-Identifier: MIT */
/* An output folder that appears complete or not at all: see publish.h. */
#include "io/publish.h"

#include "core/status.h"
#include "io/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- flat folders -------------------------------------------------------------------- */

typedef struct folder_facts {
    int64_t entries;
    int64_t tensor_files; /* .safetensors */
    int64_t no_files;     /* subfolders, devices, ... */
} folder_facts;

static dg_status look_at_folder(const char *path, folder_facts *facts)
{
    *facts = (folder_facts){0, 0, 0};
    DIR *entries = opendir(path);
    if (entries == NULL)
        return dgi_io_error("read folder", path);
    const struct dirent *entry;
    while ((entry = readdir(entries)) != NULL) {
        struct stat entry_facts;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        facts->entries++;
        bool known = fstatat(dirfd(entries), entry->d_name, &entry_facts, AT_SYMLINK_NOFOLLOW) == 0;
        if (!known || !(S_ISREG(entry_facts.st_mode) || S_ISLNK(entry_facts.st_mode)))
            facts->no_files++;
        else if (dgi_ends_with(entry->d_name, ".safetensors"))
            facts->tensor_files++;
    }
    closedir(entries);
    return DG_OK;
}

/* Removes the files of a folder, all or those that a later run cannot take up. */
static void remove_files(const char *path, bool all)
{
    DIR *entries = opendir(path);
    if (entries == NULL)
        return;
    const struct dirent *entry;
    while ((entry = readdir(entries)) != NULL)
        if (all || !(dgi_ends_with(entry->d_name, ".safetensors") ||
                     strcmp(entry->d_name, DGI_JOURNAL) == 0))
            unlinkat(dirfd(entries), entry->d_name, 0); /* fails for . and .. */
    closedir(entries);
}

/* Removes a folder and the files in it; what it cannot remove stays. */
static void remove_flat_folder(const char *path)
{
    remove_files(path, true);
    rmdir(path);
}

/* Whether the output may be written there. */
static dg_status check_final(const char *path, bool replace)
{
    struct stat facts;
    if (stat(path, &facts) != 0)
        return errno == ENOENT ? DG_OK : dgi_io_error("look at", path);
    if (!S_ISDIR(facts.st_mode))
        return dgi_fail(DG_INVALID_ARGUMENT, "output %s is there already and is no folder", path);
    folder_facts folder;
    DGI_TRY(look_at_folder(path, &folder));
    if (folder.entries == 0)
        return DG_OK;
    if (!replace)
        return dgi_fail(DG_INVALID_ARGUMENT, "output %s is there already and is not empty", path);
    if (folder.no_files != 0 || folder.tensor_files == 0)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "output %s is not a checkpoint (a folder of files, some of them "
                        ".safetensors): it is not replaced",
                        path);
    return DG_OK;
}

/* ---- the temporary folder ------------------------------------------------------------ */

/* Opens and locks a folder; -1 when it is locked by a run that lives, or gone. */
static int lock_folder(const char *path)
{
    int lock = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0)
        return -1;
    struct stat ours, there;
    if (flock(lock, LOCK_EX | LOCK_NB) == 0 && fstat(lock, &ours) == 0 && stat(path, &there) == 0 &&
        ours.st_ino == there.st_ino)
        return lock;
    close(lock);
    return -1;
}

/* Whether the folder has a journal that begins so. */
static bool has_identity(const char *path, const char *identity)
{
    char *journal = dgi_path_join(path, DGI_JOURNAL);
    dgi_map map = {NULL, 0};
    size_t bytes = strlen(identity);
    bool same = journal != NULL && access(journal, F_OK) == 0 &&
                dgi_file_map(journal, &map) == DG_OK && map.bytes >= bytes &&
                memcmp(map.data, identity, bytes) == 0;
    dgi_file_unmap(&map);
    free(journal);
    return same;
}

/* Takes up the first folder of a run that no longer lives with that identity; removes others. */
static dg_status sort_leftovers(const char *parent, const char *prefix, const char *identity,
                                dgi_output *output)
{
    DIR *entries = opendir(parent);
    if (entries == NULL)
        return DG_OK; /* making a folder there says why */
    dg_status status = DG_OK;
    const struct dirent *entry;
    while (status == DG_OK && (entry = readdir(entries)) != NULL) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
            continue;
        char *path = dgi_path_join(parent, entry->d_name);
        int lock = path == NULL ? -1 : lock_folder(path);
        if (lock >= 0 && !output->resumed && has_identity(path, identity)) {
            remove_files(path, false);
            output->temporary = path;
            output->lock = lock;
            output->resumed = true;
            continue;
        }
        if (lock >= 0) {
            remove_flat_folder(path);
            close(lock);
        }
        if (path == NULL)
            status = dgi_no_memory(parent);
        free(path);
    }
    closedir(entries);
    return status;
}

static dg_status begin_journal(const dgi_output *output, const char *identity)
{
    char *path = dgi_path_join(output->temporary, DGI_JOURNAL);
    if (path == NULL)
        return dgi_no_memory(DGI_JOURNAL);
    dg_status status = dgi_file_create(path, identity, strlen(identity));
    free(path);
    return status;
}

/* Makes and locks ".<name>.deepgemm-<n>" beside the final path, with the first free n. */
static dg_status make_temporary(const char *parent, const char *prefix, dgi_output *output)
{
    for (int64_t n = 0;; n++) {
        if (asprintf(&output->temporary, "%s/%s%lld", parent, prefix, (long long)n) < 0) {
            output->temporary = NULL;
            return dgi_no_memory("a path");
        }
        if (mkdir(output->temporary, 0777) == 0) {
            output->lock = lock_folder(output->temporary);
            if (output->lock >= 0)
                return DG_OK;
            /* Another run found the folder before it was locked, and takes it for a leftover. */
        } else if (errno != EEXIST) {
            dg_status status = dgi_io_error("create folder", output->temporary);
            free(output->temporary);
            output->temporary = NULL;
            return status;
        }
        free(output->temporary);
        output->temporary = NULL;
    }
}

/* `path` without links, and without slashes at its end where it does not exist yet. */
static char *final_path(const char *path)
{
    char *final = realpath(path, NULL);
    if (final != NULL || (final = strdup(path)) == NULL)
        return final;
    for (size_t end = strlen(final); end > 1 && final[end - 1] == '/'; end--)
        final[end - 1] = '\0';
    return final;
}

dg_status dgi_output_open(const char *path, bool replace, const char *identity, dgi_output *output)
{
    *output = (dgi_output){.final = final_path(path), .lock = -1, .replace = replace};
    if (output->final == NULL)
        return dgi_no_memory(path);
    const char *name = dgi_path_name(output->final);
    if (*name == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return dgi_fail(DG_INVALID_ARGUMENT, "output %s does not end with a folder's name", path);
    DGI_TRY(check_final(output->final, replace));

    char *parent = dgi_path_folder(output->final), *prefix;
    if (asprintf(&prefix, ".%s.deepgemm-", name) < 0)
        prefix = NULL;
    dg_status status = DG_OK;
    if (parent == NULL || prefix == NULL) {
        status = dgi_no_memory(path);
    } else {
        status = sort_leftovers(parent, prefix, identity, output);
        if (status == DG_OK && !output->resumed) {
            status = make_temporary(parent, prefix, output);
            if (status == DG_OK)
                status = begin_journal(output, identity);
        }
    }
    free(parent);
    free(prefix);
    return status;
}

/* ---- publishing ---------------------------------------------------------------------- */

static dg_status sync_folder(const char *path)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return dgi_io_error("open", path);
    dg_status status = fsync(folder) == 0 ? DG_OK : dgi_io_error("write", path);
    close(folder);
    return status;
}

static dg_status take_place(dgi_output *output)
{
    /* A rename onto an empty folder replaces it. */
    if (rename(output->temporary, output->final) == 0) {
        free(output->temporary);
        output->temporary = NULL;
        return DG_OK;
    }
    if (!output->replace || (errno != ENOTEMPTY && errno != EEXIST))
        return dgi_io_error("create", output->final);
    DGI_TRY(check_final(output->final, true));
    /* After the exchange the temporary folder is the old output. */
    if (renameat2(AT_FDCWD, output->temporary, AT_FDCWD, output->final, RENAME_EXCHANGE) != 0)
        return dgi_io_error("exchange (is the file system able to?)", output->final);
    return DG_OK;
}

dg_status dgi_output_publish(dgi_output *output)
{
    char *journal = dgi_path_join(output->temporary, DGI_JOURNAL);
    if (journal == NULL)
        return dgi_no_memory(output->final);
    unlink(journal);
    free(journal);
    DGI_TRY(sync_folder(output->temporary));
    DGI_TRY(take_place(output));
    char *parent = dgi_path_folder(output->final);
    if (parent == NULL)
        return dgi_no_memory(output->final);
    dg_status status = sync_folder(parent);
    free(parent);
    return status;
}

void dgi_output_close(dgi_output *output)
{
    if (output->temporary != NULL && !output->keep)
        remove_flat_folder(output->temporary);
    if (output->lock >= 0)
        close(output->lock);
    free(output->temporary);
    free(output->final);
    *output = (dgi_output){.lock = -1};
}
