/* SPDX-License-Identifier: MIT */
/* deepgemm tune: measures each GPU kernel that can run, and judges the planner by it. */
#include "bench.h"
#ifdef BENCH_GPU
#include "gpu/bench_gpu.h"
#endif

#include <stdio.h>
#include <string.h>

int cli_tune(int argc, char **argv)
{
    const char *device = "cuda:0", *cases = NULL, *recipe = NULL, *commit = NULL;
    const char *output = NULL;
    double seconds = 0;
    int weights = 1;
    bool json = false;
    const cli_option options[] = {
        {"device", "cuda:N", CLI_TEXT, &device, "the GPU (default cuda:0)"},
        {"cases", "FILE", CLI_TEXT, &cases, "one case a line: recipe m n k (default: as bench)"},
        {"recipe", "NAME", CLI_TEXT, &recipe, "only this recipe of the default cases"},
        {"weights", "packed|rows", CLI_CHOICE, &weights, "the layout of B (default rows)"},
        {"seconds", "S", CLI_REAL, &seconds, "for each measurement (default 0.03)"},
        {"commit", "ID", CLI_TEXT, &commit, "the source's commit, noted in the JSON"},
        {"output", "FILE.json", CLI_OUTPUT, &output,
         "keep the JSON here, after each case: an interruption loses one case at most"},
        CLI_JSON(&json),
        {0},
    };
    cli_parse(&(cli_usage){"tune", "", 0, 0,
                           "Measures every GPU kernel that can run each case: what the planner's "
                           "choice costs against\nthe best one, and by which factors its constants "
                           "are off.",
                           options},
              argc, argv);
    int ordinal = cli_cuda_ordinal(device);
    if (ordinal < 0)
        cli_misuse("--device takes cuda:N, not '%s'", device);
    if (cases != NULL && recipe != NULL)
        cli_misuse("either --cases or --recipe");
#ifdef BENCH_GPU
    gpu_request request = {.device = ordinal,
                           .recipe = recipe,
                           .no_peers = true,
                           .packed = weights == 0,
                           .json = json,
                           .seconds = seconds,
                           .commit = commit,
                           .output = output,
                           .options = DG_CONTEXT_OPTIONS_INIT};
    if (cases != NULL)
        bench_cases_read(&request.cases, cases);
    return gpu_tune_run(&request);
#else
    cli_die("this build is for the CPU only: it cannot run on %s", device);
#endif
}
