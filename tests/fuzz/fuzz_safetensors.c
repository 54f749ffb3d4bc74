/* SPDX-License-Identifier: MIT */
/* Fuzz target: any bytes as a safetensors file. What is accepted must be what the reader says. */
#include "io/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What reading a byte is for. */
static volatile uint8_t touched;

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dgi_safetensors parsed;
    if (dgi_safetensors_parse(data, size, "input", &parsed) != DG_OK) {
        require(parsed.tensors == NULL && *dg_last_error() != '\0');
        return 0;
    }
    /* Without an overlap the tensors fit together exactly; every byte of them can be read. */
    const uint8_t *end = data + size;
    size_t bytes = 0;
    for (size_t i = 0; i < parsed.count; i++) {
        const dg_tensor *tensor = parsed.tensors[i];
        const uint8_t *first = tensor->data;
        require(first >= data && first <= end && tensor->bytes <= (size_t)(end - first));
        require(tensor->dtype == DG_NONE ||
                (size_t)tensor->elements * dg_dtype_bytes(tensor->dtype) == tensor->bytes);
        require(dgi_find_by_name(parsed.by_name, parsed.count, tensor->name) == tensor);
        for (size_t b = 0; b < tensor->bytes; b++)
            touched = first[b];
        for (int32_t d = 0; d < tensor->rank; d++)
            require(tensor->shape[d] >= 0);
        bytes += tensor->bytes;
    }
    require(bytes <= size - 8);
    dgi_safetensors_free(&parsed);
    return 0;
}
