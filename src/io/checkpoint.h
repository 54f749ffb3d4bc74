/* SPDX-License-Identifier: MIT */
/* What an open checkpoint consists of. Made by checkpoint.c; read by src/io/ and src/quant/. */
#ifndef DGI_CHECKPOINT_H
#define DGI_CHECKPOINT_H

#include "io/file.h"
#include "io/quantization.h"
#include "io/safetensors.h"

typedef struct dgi_shard {
    char *name; /* without the folder */
    dgi_map map;
    dgi_safetensors parsed;
} dgi_shard;

struct dg_checkpoint {
    char *folder;
    bool is_folder; /* the caller gave the folder, not a file in it */
    char *file;     /* the index, or the only file */
    dgi_shard *shards;
    size_t shard_count;
    dg_tensor **tensors; /* in the order of the shards and their data */
    dg_tensor **by_name; /* the same, ordered by name */
    size_t count;
    dgi_quantization quantization;
};

bool dgi_is_index(const char *file);

/* Opens the files of these names as the shards. */
dg_status dgi_checkpoint_open_shards(dg_checkpoint *checkpoint, const char *const *names,
                                     size_t count);
/* Makes room for `count` tensors. */
dg_status dgi_checkpoint_allocate(dg_checkpoint *checkpoint, size_t count);
/* Opens the shards that the index (checkpoint->file) names, and lists its tensors. */
dg_status dgi_checkpoint_open_index(dg_checkpoint *checkpoint);

#endif
