/* SPDX-License-Identifier: MIT */
/* The FP8 checkpoint formats: see layout.h. What they write into config.json is in config.c. */
#include "quant/layout.h"

#define BLOCK 128 /* of DeepSeek-style checkpoints */
#define MX    32  /* of OCP MX */

static const dgi_layout layouts[DG_CHECKPOINT_FORMATS] = {
    [DG_CHECKPOINT_BLOCK] = {"block", ".weight_scale_inv", BLOCK, BLOCK, DG_F32, "F32", 2,
                             DG_SCALE_EXACT, DGI_INPUT_DYNAMIC, true},
    [DG_CHECKPOINT_CHANNEL] = {"channel", ".weight_scale", 1, 0, DG_F32, "F32", 2, DG_SCALE_EXACT,
                               DGI_INPUT_DYNAMIC, false},
    [DG_CHECKPOINT_BLOCK_POW2] = {"block-pow2", ".weight_scale_inv", BLOCK, BLOCK, DG_F32, "F32", 2,
                                  DG_SCALE_POW2_UP, DGI_INPUT_DYNAMIC, true},
    [DG_CHECKPOINT_BLOCK_UE8M0] = {"block-ue8m0", ".scale", BLOCK, BLOCK, DG_UE8M0, "F8_E8M0", 2,
                                   DG_SCALE_POW2_UP, DGI_INPUT_DYNAMIC, false},
    [DG_CHECKPOINT_TENSOR] = {"tensor", ".weight_scale", 0, 0, DG_F32, "F32", 0, DG_SCALE_EXACT,
                              DGI_INPUT_MAYBE, false},
    [DG_CHECKPOINT_CT_TENSOR] = {"ct-tensor", ".weight_scale", 0, 0, DG_F32, "F32", 1,
                                 DG_SCALE_EXACT, DGI_INPUT_MAYBE, false},
    [DG_CHECKPOINT_CT_BLOCK] = {"ct-block", ".weight_scale", BLOCK, BLOCK, DG_F32, "F32", 2,
                                DG_SCALE_EXACT, DGI_INPUT_DYNAMIC, false},
    [DG_CHECKPOINT_CT_MXFP8] = {"ct-mxfp8", ".weight_scale", 1, MX, DG_UE8M0, "U8", 2,
                                DG_SCALE_POW2_UP, DGI_INPUT_DYNAMIC, false},
    [DG_CHECKPOINT_MODELOPT] = {"modelopt", ".weight_scale", 0, 0, DG_F32, "F32", 0, DG_SCALE_EXACT,
                                DGI_INPUT_STATIC, false},
    [DG_CHECKPOINT_MODELOPT_CHANNEL] = {"modelopt-channel", ".weight_scale", 1, 0, DG_F32, "F32", 1,
                                        DG_SCALE_EXACT, DGI_INPUT_DYNAMIC, false},
    [DG_CHECKPOINT_MODELOPT_BLOCK] = {"modelopt-block", ".weight_scale", BLOCK, BLOCK, DG_F32,
                                      "F32", 2, DG_SCALE_EXACT, DGI_INPUT_DYNAMIC, false},
    [DG_CHECKPOINT_MODELOPT_MXFP8] = {"modelopt-mxfp8", ".weight_scale", 1, MX, DG_UE8M0, "U8", 2,
                                      DG_SCALE_POW2_UP, DGI_INPUT_DYNAMIC, false},
    [DG_CHECKPOINT_BF16] = {.name = "bf16"},
};

const dgi_layout *dgi_layout_of(dg_checkpoint_format format)
{
    return (size_t)format < DG_CHECKPOINT_FORMATS ? &layouts[format] : NULL;
}

const char *dg_checkpoint_format_name(dg_checkpoint_format format)
{
    const dgi_layout *layout = dgi_layout_of(format);
    return layout == NULL ? NULL : layout->name;
}
