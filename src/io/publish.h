/* SPDX-License-Identifier: MIT */
/*
 * An output folder that appears complete or not at all: it is filled under a temporary name beside
 * its final one, and takes its place by a single rename.
 */
#ifndef DGI_PUBLISH_H
#define DGI_PUBLISH_H

#include "deepgemm.h"

typedef struct dgi_output {
    char *final;     /* the path that the caller wants */
    char *temporary; /* the folder to put the files in */
    int lock;        /* held while this run lives, so that others leave the folder alone */
    bool replace;
    bool resumed; /* the folder is that of an earlier run, with what it has done */
    bool keep;    /* dgi_output_close() leaves the temporary folder, for a later run to take up */
} dgi_output;

/* A file in the temporary folder that begins with the run's identity. It is not published. */
#define DGI_JOURNAL ".journal"

/*
 * Makes the temporary folder, with a journal that holds `identity`. A folder that an earlier run
 * with the same identity left is taken up, with its .safetensors files and its journal; those that
 * other runs for the same output left are removed. The
 * final path must not exist or be an empty folder; with `replace` it may also be a flat folder that
 * holds .safetensors files.
 */
dg_status dgi_output_open(const char *path, bool replace, const char *identity, dgi_output *output);
/* Brings the folder to the disk and gives it its final name. */
dg_status dgi_output_publish(dgi_output *output);
/* Releases the output, and removes the temporary folder if there is one still and keep is false. */
void dgi_output_close(dgi_output *output);

#endif
