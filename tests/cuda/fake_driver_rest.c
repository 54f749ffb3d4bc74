/* SPDX-License-Identifier: MIT */
/* All functions of the driver that the library looks up, unless fake_driver.c has them: none may be
 * called on a device that cannot be used. */
#include "cuda/driver.h"

void fake_driver_never(void);
void fake_driver_never(void)
{
    __builtin_trap();
}

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#define NEVER(function)                                                                            \
    __asm__(".weak " TEXT(function) "\n.set " TEXT(function) ", fake_driver_never\n");
DGI_DRIVER_FUNCTIONS(NEVER)
