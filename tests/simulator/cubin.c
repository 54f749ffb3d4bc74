/* SPDX-License-Identifier: MIT */
/* Reads the ELF file that a cubin is: section .nv.info.NAME describes kernel NAME. */
#include "cubin.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>

/* An entry begins with its format, its attribute and 16 bits: the value, or the bytes behind. */
enum { FORMAT_BYTES = 4, MAX_THREADS = 0x05, PARAMETER_BYTES = 0x19 };

static uint32_t word_at(const uint8_t *data, int bytes)
{
    uint32_t word = 0;
    memcpy(&word, data, (size_t)bytes);
    return word;
}

static void read_info(const uint8_t *data, size_t bytes, sim_cubin_kernel *kernel)
{
    for (size_t at = 0; at + 4 <= bytes;) {
        const uint8_t format = data[at], attribute = data[at + 1];
        const uint32_t value = word_at(data + at + 2, 2);
        at += 4;
        if (attribute == PARAMETER_BYTES)
            kernel->parameter_bytes = value;
        if (format != FORMAT_BYTES)
            continue;
        if (attribute == MAX_THREADS)
            kernel->most_threads = word_at(data + at, 4);
        at += value;
    }
}

bool sim_cubin_find(const void *image, const char *name, sim_cubin_kernel *kernel)
{
    const uint8_t *file = image;
    const Elf64_Ehdr *header = image;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64)
        return false;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(const void *)(file + header->e_shoff);
    const char *names = (const char *)file + sections[header->e_shstrndx].sh_offset;
    char wanted[256];
    snprintf(wanted, sizeof wanted, ".nv.info.%s", name);
    for (int i = 0; i < header->e_shnum; i++) {
        if (strcmp(names + sections[i].sh_name, wanted) != 0)
            continue;
        *kernel = (sim_cubin_kernel){0, 1024};
        read_info(file + sections[i].sh_offset, sections[i].sh_size, kernel);
        return true;
    }
    return false;
}
