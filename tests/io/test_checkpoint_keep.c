/* SPDX-License-Identifier: MIT */
/* Which layers of a checkpoint stay in 16 bits: patterns, defaults, and what is refused. */
#include "files.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

/* Quantises layers of these names with a pattern; gives a letter for each: q(uantised), k(ept). */
static char *decide(const char *const *layers, int count, const char *pattern, int64_t *matches)
{
    static char decisions[16];
    static const float data[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    stored tensors[16];
    char names[16][64];
    for (int i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "%s.weight", layers[i]);
        tensors[i] = (stored){names[i], "F32", 4, 2, 2, data};
    }
    const char *file = files_path(files_folder(), "x.safetensors");
    safetensors_write(file, tensors, (size_t)count);
    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    options.keep = &pattern;
    options.keep_count = 1;
    options.keep_matches = matches;
    const char *output = files_path(files_folder(), "out");
    assert_ok(write_as(false, file, output, &options));
    dg_checkpoint *checkpoint = open_checkpoint(output);
    for (int i = 0; i < count; i++) {
        dg_tensor tensor;
        assert_ok(dg_checkpoint_find(checkpoint, names[i], &tensor));
        decisions[i] = tensor.dtype == DG_E4M3 ? 'q' : 'k';
    }
    decisions[count] = '\0';
    dg_checkpoint_close(checkpoint);
    return decisions;
}

/* G48: plain patterns, expressions, the layers kept by default, and how often each matched. */
static void g48_patterns(void **state)
{
    (void)state;
    static const char *const layers[] = {
        "m.0.mlp.gate", "m.0.mlp.gate_proj", "m.0.mlp.Xgate", "m.1.up", "m.11.up", "lm_head",
    };
    static const struct {
        const char *pattern, *decisions;
        int64_t matches;
    } cases[] = {
        {"lm_head", "kqqqqk", 1},
        {"re:.*mlp\\.gate$", "kqqqqk", 1},
        {"re:.*mlp.*gate$", "kqkqqk", 2},
        {"mlp.gate_proj", "kkqqqk", 1},
        {"mlp.gate", "kqqqqk", 1},
        {"gate_pro", "kqqqqk", 0},
        {"m.1", "kqqkqk", 1},
        {"m.1.up.weight", "kqqkqk", 1},
        {"re:m\\.1", "kqqkkk", 2},
        {"re:\\.1", "kqqqqk", 0}, /* from the first character on, as re.match */
        {"re:m\\.(1|0)\\.", "kkkkqk", 4},
        {"re:x|.*head", "kqqqqk", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t matches = -1;
        char *decisions = decide(layers, 6, cases[i].pattern, &matches);
        if (strcmp(decisions, cases[i].decisions) != 0)
            fail_msg("%s: %s, not %s", cases[i].pattern, decisions, cases[i].decisions);
        assert_int_equal(matches, cases[i].matches);
    }
    static const char *const defaults[] = {"model.layers.61.shared_head.head",
                                           "model.layers.61.eh_proj",
                                           "wte",
                                           "h.0.attn.proj",
                                           "model.embed_tokens",
                                           "blocks.norm",
                                           "m.0.mlp.gate.up",
                                           "m.0.shared_expert_gate",
                                           "m.0.router",
                                           "m.0.mlp.experts.3.gate"};
    int64_t matches;
    assert_string_equal(decide(defaults, 10, "none", &matches), "kkkqkkqkkk");
}

static void patterns_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *message;
    } cases[] = {
        {"", "is empty"},         {NULL, "is empty"},
        {"re:(", "re:("},         {"re:\\d+", "\\d"},
        {"re:(?:a)", "(?...)"},   {"re:a+?b", "+?"},
        {"re:a\\", "no meaning"}, {"re:a*+", "another meaning"},
    };
    static const float data[4] = {1.0f};
    const stored tensor = {"w.weight", "F32", 4, 2, 2, data};
    const char *folder = files_folder(), *output = files_path(files_folder(), "out");
    safetensors_write(files_path(folder, "model.safetensors"), &tensor, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
        options.keep = &cases[i].pattern;
        options.keep_count = 1;
        assert_refused(write_as(false, folder, output, &options), DG_INVALID_ARGUMENT,
                       cases[i].message);
        assert_false(files_exist(output));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(g48_patterns),
        cmocka_unit_test(patterns_that_are_refused),
    };
    return test_run(argc, argv, tests);
}
