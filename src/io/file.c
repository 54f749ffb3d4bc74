/* SPDX-License-Identifier: MIT */
/* Files and paths: see file.h. */
#include "io/file.h"

#include "core/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

dg_status dgi_no_memory(const char *what)
{
    return dgi_fail(DG_OUT_OF_MEMORY, "no memory for %s", what);
}

dg_status dgi_io_error(const char *verb, const char *path)
{
    dg_status status = errno == ENOENT ? DG_NOT_FOUND : DG_IO_ERROR;
    return dgi_fail(status, "cannot %s %s: %s", verb, path, strerror(errno));
}

/* ---- reading ------------------------------------------------------------------------- */

static dg_status map_open_file(int file, const char *path, dgi_map *map)
{
    struct stat facts;
    if (fstat(file, &facts) != 0)
        return dgi_io_error("look at", path);
    if (!S_ISREG(facts.st_mode))
        return dgi_fail(DG_BAD_FILE, "%s is not a regular file", path);
    *map = (dgi_map){NULL, (size_t)facts.st_size};
    if (map->bytes == 0)
        return DG_OK;
    void *data = mmap(NULL, map->bytes, PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED)
        return dgi_io_error("map", path);
    map->data = data;
    return DG_OK;
}

dg_status dgi_file_map(const char *path, dgi_map *map)
{
    /* O_NONBLOCK: opening a pipe by that name must not hang. */
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return dgi_io_error("open", path);
    dg_status status = map_open_file(file, path, map);
    close(file);
    return status;
}

void dgi_file_unmap(dgi_map *map)
{
    if (map->data != NULL)
        munmap((void *)map->data, map->bytes);
    *map = (dgi_map){NULL, 0};
}

void dgi_drop_pages(const void *data, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)data / page * page;
    uintptr_t last = ((uintptr_t)data + bytes) / page * page; /* a shared last page may stay */
    if (last > first)
        madvise((void *)first, last - first, MADV_DONTNEED);
}

/* ---- writing ------------------------------------------------------------------------- */

dg_status dgi_file_write(int file, const void *data, size_t bytes, int64_t offset, const char *path)
{
    const char *next = data;
    while (bytes > 0) {
        ssize_t written = pwrite(file, next, bytes, offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return dgi_io_error("write", path);
        next += written;
        offset += written;
        bytes -= (size_t)written;
    }
    return DG_OK;
}

dg_status dgi_file_create(const char *path, const void *text, size_t bytes)
{
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0)
        return dgi_io_error("create", path);
    dg_status status = dgi_file_write(file, text, bytes, 0, path);
    if (status == DG_OK && fsync(file) != 0)
        status = dgi_io_error("write", path);
    close(file);
    return status;
}

/* ---- paths --------------------------------------------------------------------------- */

char *dgi_path_join(const char *folder, const char *name)
{
    char *path;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

char *dgi_path_folder(const char *path)
{
    size_t length = (size_t)(dgi_path_name(path) - path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    return length == 0 ? strdup(".") : strndup(path, length);
}

const char *dgi_path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

bool dgi_ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}
