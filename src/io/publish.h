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
} dgi_output;

/*
 * Makes the temporary folder, after removing those that killed runs for the same output left. The
 * final path must not exist or be an empty folder; with `replace` it may also be a flat folder that
 * holds .safetensors files.
 */
dg_status dgi_output_open(const char *path, bool replace, dgi_output *output);
/* Brings the folder to the disk and gives it its final name. */
dg_status dgi_output_publish(dgi_output *output);
/* Releases the output, and removes the temporary folder if there is one still. */
void dgi_output_close(dgi_output *output);

#endif
