/* SPDX-License-Identifier: MIT */
/* A file that takes the place of another in one step: see replace.h. */
#include "io/replace.h"

#include "core/status.h"
#include "io/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

dg_status dgi_replace_begin(const char *path, char **temporary)
{
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is there already and is no regular file", path);
    if (asprintf(temporary, "%s.deepgemm-%d", path, (int)getpid()) < 0)
        return dgi_no_memory(path);
    unlink(*temporary); /* of a run that was killed and had this number */
    return DG_OK;
}

dg_status dgi_replace_end(const char *path, char *temporary, dg_status status)
{
    if (status == DG_OK && rename(temporary, path) != 0)
        status = dgi_io_error("write", path);
    if (status != DG_OK)
        unlink(temporary);
    free(temporary);
    return status;
}
