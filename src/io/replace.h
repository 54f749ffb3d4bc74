/* SPDX-License-Identifier: MIT */
/* A file that takes the place of another in one step: it is written beside it and renamed. */
#ifndef DGI_REPLACE_H
#define DGI_REPLACE_H

#include "deepgemm.h"

/* Where to write what is to become `path`: nothing is there. To be handed to dgi_replace_end(). */
dg_status dgi_replace_begin(const char *path, char **temporary);
/* Gives the file its place if `status`, of writing it, is DG_OK; removes it otherwise. Returns
 * `status`, or what went wrong then. */
dg_status dgi_replace_end(const char *path, char *temporary, dg_status status);

#endif
